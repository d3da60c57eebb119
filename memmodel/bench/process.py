"""A strategy's process, seen from the parent."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, cast

from memmodel.bench.strategy import Strategy

_STDERR_LINES = 15


class StrategyError(RuntimeError):
    """A strategy raised, or its process died or ran out of time; ``details`` tells more."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class StrategyProcess:
    """Runs one strategy in a process of its own; a context manager that ends it.

    Args:
        strategy: what to run.
        timeout: seconds after which a request is given up and the process killed.
    """

    def __init__(self, strategy: Strategy, *, timeout: float) -> None:
        self.strategy = strategy
        self._timeout = timeout
        self._timed_out = False
        # Closed by close(), once the process has ended.
        self._stderr = tempfile.TemporaryFile(  # noqa: SIM115
            mode="w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "memmodel.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=os.environ | dict(strategy.environment),
            text=True,
            encoding="utf-8",
        )
        self._requests = cast(IO[str], self._process.stdin)
        self._answers = cast(IO[str], self._process.stdout)

    def __enter__(self) -> "StrategyProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def load(self, arguments: Mapping[str, Any] | None = None) -> float:
        """Import and prepare the strategy, with its own arguments or others; returns seconds."""
        answer = self._ask(
            do="load",
            factory=self.strategy.factory,
            arguments=dict(self.strategy.arguments if arguments is None else arguments),
            device=self.strategy.device,
        )
        return answer["seconds"]

    def run(self, *, outputs: str | None = None) -> tuple[float, float]:
        """Do the work once; save its outputs as .npz to ``outputs``.

        Returns:
            Its seconds, and processor seconds that other processes took meanwhile.
        """
        answer = self._ask(do="run", outputs=outputs)
        return answer["seconds"], answer["others"]

    def peak(self) -> int:
        """Do the work once and return its peak memory above the present level, in bytes."""
        return self._ask(do="peak")["bytes"]

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):  # it died with a request unread: reported by then
            self._requests.close()
        self._answers.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        timer = threading.Timer(self._timeout, self._give_up)
        timer.start()
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise StrategyError(self._cause_of_death(), self._stderr_tail())
        answer = json.loads(line)
        if "error" in answer:
            raise StrategyError(answer["error"], answer["traceback"])
        return answer

    def _give_up(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _cause_of_death(self) -> str:
        code = self._process.wait()
        if self._timed_out:
            return f"gave no answer within {self._timeout:g} s"
        if code == -signal.SIGKILL:
            return "its process was killed (SIGKILL), most likely for lack of memory"
        if code < 0:
            return f"its process died of {signal.Signals(-code).name}"
        return f"its process exited with code {code}"

    def _stderr_tail(self) -> str:
        self._stderr.seek(0)
        return "".join(self._stderr.readlines()[-_STDERR_LINES:])
