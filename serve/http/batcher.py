"""Roll out requests of equal shape together."""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from prometheus_client import Gauge, Histogram

from memmodel.serve.http.limits import DrainingError, Limits, QueueFullError
from memmodel.serve.runner import Runner
from memmodel.serve.signature import Array, Arrays

_BATCH_ROWS = Histogram(
    "memmodel_batch_rows", "Rows rolled out together", buckets=[2**i for i in range(11)]
)
_QUEUED_ROWS = Gauge("memmodel_queued_rows", "Rows that wait to be rolled out")
_QUEUED_BYTES = Gauge("memmodel_queued_bytes", "Bytes of the requests that wait to be rolled out")

_Key = tuple[Any, ...]


@dataclass(eq=False)
class _Request:
    start: Array
    inputs: Array | None
    result: "asyncio.Future[Arrays]"
    due: float

    @property
    def rows(self) -> int:
        return len(self.start)

    @property
    def bytes(self) -> int:
        return self.start.nbytes + (0 if self.inputs is None else self.inputs.nbytes)


@dataclass
class _Group:
    """Requests of one shape, oldest first."""

    steps: int
    requests: deque[_Request] = field(default_factory=deque)

    def rows(self) -> int:
        return sum(request.rows for request in self.requests)


class Batcher:
    """Collects requests that wait and rolls those of equal shape out in one call of the model.

    A request waits at most ``limits.delay`` for company while the model is free, and joins others
    of its shape for as long as the model is busy. Its rows come back to it alone; if a batch fails,
    its requests are tried one by one, so that each gets its own answer.

    Args:
        runner: the model.
        limits: batch size, delay and queue length.
    """

    def __init__(self, runner: Runner, limits: Limits) -> None:
        self._runner, self._limits = runner, limits
        self._groups: dict[_Key, _Group] = {}
        self._queued_rows = self._queued_bytes = 0
        self._draining = self._given_up = False
        self._running: list[_Request] = []
        self._arrived = asyncio.Event()
        # One call at a time: it uses all cores by itself.
        self._thread = ThreadPoolExecutor(1, "memmodel-rollout")
        self._worker = asyncio.create_task(self._work())

    async def submit(self, start: Array, steps: int, inputs: Array | None) -> Arrays:
        """Roll out one request, and wait for its results.

        Raises:
            QueueFullError: too many rows or bytes wait already.
            DrainingError: the service is shutting down.
        """
        loop = asyncio.get_running_loop()
        request = _Request(start, inputs, loop.create_future(), loop.time() + self._limits.delay)
        self._admit(request)
        key = (steps, start.shape[1:], None if inputs is None else inputs.shape[1:])
        self._groups.setdefault(key, _Group(steps)).requests.append(request)
        self._count(request, 1)
        self._arrived.set()
        return await request.result

    def _admit(self, request: _Request) -> None:
        if self._draining:
            raise DrainingError("the service is shutting down")
        rows, size = self._limits.queue_rows, self._limits.queue_bytes
        if self._queued_rows + request.rows > rows:
            raise QueueFullError(
                f"{self._queued_rows} rows wait, the queue holds {rows}: try again"
            )
        # Whatever its size, a request may wait alone: its own limit has let it pass.
        if self._queued_bytes and self._queued_bytes + request.bytes > size:
            raise QueueFullError(
                f"{self._queued_bytes} bytes wait, the queue holds {size}: try again"
            )

    def refuse(self) -> None:
        """Refuse new requests from now on, and hurry with the ones that wait."""
        self._draining = True
        self._arrived.set()

    def abandon(self) -> None:
        """Refuse new requests, and answer at once those that wait or are being rolled out."""
        self._given_up = True
        self.refuse()
        waiting = [request for group in self._groups.values() for request in group.requests]
        for request in (*waiting, *self._running):
            if not request.result.done():
                request.result.set_exception(
                    DrainingError("the service is shutting down and had no time left for this")
                )
        self._groups.clear()

    async def drain(self) -> bool:
        """Refuse new requests, finish the ones that wait, and stop.

        Returns:
            False if the model is still at work on requests that were abandoned: a call of it cannot
            be interrupted.
        """
        self.refuse()
        while not self._worker.done():
            await asyncio.wait({self._worker}, timeout=0.1)
            if self._given_up:
                break
        self._thread.shutdown(wait=False)
        return self._worker.done()

    async def _work(self) -> None:
        while True:
            group = self._next()
            if group is not None:
                self._running = self._take(group)
                await self._serve(group.steps, self._running)
                self._running = []
            elif not self._groups and self._draining:
                return
            else:
                await self._wait()

    def _next(self) -> _Group | None:
        """The group that should run now: a full one, or the one that has waited longest."""
        groups = list(self._groups.values())
        full = [group for group in groups if group.rows() >= self._limits.batch_rows]
        if full or not groups:
            return full[0] if full else None
        oldest = min(groups, key=lambda group: group.requests[0].due)
        due = oldest.requests[0].due <= asyncio.get_running_loop().time()
        return oldest if due or self._draining else None

    async def _wait(self) -> None:
        """Wait for a request, or until the oldest one has waited long enough."""
        self._arrived.clear()
        due = min((group.requests[0].due for group in self._groups.values()), default=None)
        left = None if due is None else max(0.0, due - asyncio.get_running_loop().time())
        try:
            await asyncio.wait_for(self._arrived.wait(), left)
        except TimeoutError:
            return  # what has waited long enough runs alone

    def _take(self, group: _Group) -> list[_Request]:
        """Take requests off a group's queue, up to a batch in rows and bytes; at least one."""
        taken: list[_Request] = []
        rows = 0
        most = self._most_rows(group)
        while group.requests and (not taken or rows + group.requests[0].rows <= most):
            request = group.requests.popleft()
            self._count(request, -1)
            if not request.result.cancelled():  # its client may have gone
                taken.append(request)
                rows += request.rows
        for key in [key for key, other in self._groups.items() if not other.requests]:
            del self._groups[key]
        return taken

    def _most_rows(self, group: _Group) -> int:
        """Rows to roll out together: their memories take no more than one request's may."""
        slots = group.requests[0].start[0]
        row_bytes = slots.nbytes // len(slots) * (len(slots) + group.steps)
        return min(self._limits.batch_rows, self._limits.result_bytes // max(1, row_bytes))

    async def _serve(self, steps: int, requests: list[_Request]) -> None:
        if not requests:
            return
        try:
            results = await self._rollout(steps, requests)
        except Exception as error:
            if len(requests) == 1:
                if not requests[0].result.done():
                    requests[0].result.set_exception(error)
                return
            for request in requests:
                await self._serve(steps, [request])
            return
        _BATCH_ROWS.observe(sum(request.rows for request in requests))
        first = 0
        for request in requests:
            rows = slice(first, first + request.rows)
            first += request.rows
            if not request.result.done():
                request.result.set_result({name: value[rows] for name, value in results.items()})

    async def _rollout(self, steps: int, requests: list[_Request]) -> Arrays:
        start = np.concatenate([request.start for request in requests])
        inputs = [request.inputs for request in requests if request.inputs is not None]
        joined = np.concatenate(inputs) if inputs else None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._runner.rollout, start, steps, joined)

    def _count(self, request: _Request, sign: int) -> None:
        self._queued_rows += sign * request.rows
        self._queued_bytes += sign * request.bytes
        _QUEUED_ROWS.set(self._queued_rows)
        _QUEUED_BYTES.set(self._queued_bytes)
