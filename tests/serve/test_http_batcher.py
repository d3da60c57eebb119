"""Which requests are rolled out together."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("prometheus_client")

from memmodel.serve.http.batcher import Batcher
from memmodel.serve.http.limits import DrainingError, Limits, QueueFullError


class Counted:
    """Stands for a runner: repeats the newest slot, and counts the rows of each call."""

    def __init__(self):
        self.rows = []

    def rollout(self, start, steps, inputs):
        self.rows.append(len(start))
        return {"memory": np.concatenate([start, np.repeat(start[:, -1:], steps, axis=1)], axis=1)}


@pytest.mark.parametrize(("result_bytes", "rows"), [(1 << 20, [6]), (2 * 40, [2, 2, 2])])
def test_a_batch_takes_no_more_memory_than_one_request_may(result_bytes, rows):
    runner = Counted()

    async def serve():
        batcher = Batcher(runner, Limits(result_bytes=result_bytes, delay=0.05))
        starts = [np.full((1, 2, 1), i, np.float32) for i in range(6)]
        results = await asyncio.gather(*(batcher.submit(start, 8, None) for start in starts))
        await batcher.drain()
        return results

    for i, result in enumerate(asyncio.run(serve())):
        np.testing.assert_array_equal(result["memory"], np.full((1, 10, 1), i))
    assert runner.rows == rows


def test_the_queue_is_bounded_in_rows_and_bytes():
    async def serve(limits, starts):
        batcher = Batcher(Counted(), limits)
        waiting = (batcher.submit(start, 1, None) for start in starts)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await batcher.drain()
        return [str(result) if isinstance(result, QueueFullError) else "ok" for result in results]

    small, large = np.zeros((2, 2, 1), np.float32), np.zeros((1, 50, 1), np.float32)
    limits = Limits(queue_rows=5, delay=0.05)
    served = asyncio.run(serve(limits, [small] * 3))
    assert served == ["ok", "ok", "4 rows wait, the queue holds 5: try again"]
    limits = Limits(queue_bytes=40, delay=0.05)
    served = asyncio.run(serve(limits, [small, small, small]))
    assert served == ["ok", "ok", "32 bytes wait, the queue holds 40: try again"]
    # A single request may have more than the queue holds.
    served = asyncio.run(serve(limits, [large, small]))
    assert served == ["ok", "200 bytes wait, the queue holds 40: try again"]


def test_what_comes_while_draining_is_refused_and_what_waits_is_served():
    async def serve():
        batcher = Batcher(Counted(), Limits(delay=60))
        start = np.zeros((1, 2, 1), np.float32)
        waiting = asyncio.create_task(batcher.submit(start, 1, None))
        await asyncio.sleep(0)
        batcher.refuse()
        with pytest.raises(DrainingError, match="shutting down"):
            await batcher.submit(start, 1, None)
        result = await waiting
        await batcher.drain()
        return result

    assert asyncio.run(serve())["memory"].shape == (1, 3, 1)
