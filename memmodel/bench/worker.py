"""The process that runs one strategy: ``python -m memmodel.bench.worker``.

It reads one JSON request per line and answers each with one JSON line. Only what the strategy
itself imports is loaded here, so that the memory of one framework is not charged to another.
"""

import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from memmodel.bench.others import OtherProcesses
from memmodel.bench.peak import peak_bytes

Run = Callable[[], Mapping[str, Any]]

# Seconds in which threads of the strategy before, that spin for more work, give up.
_SETTLE = 0.1


class Session:
    """The strategy being run; each public method answers the request of that name."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._device = "cpu"

    def load(self, factory: str, arguments: dict[str, Any], device: str) -> dict[str, Any]:
        """Import and call the factory."""
        begin = time.perf_counter()
        self._device = device
        self._run = _resolve(factory)(**arguments)
        return {"seconds": time.perf_counter() - begin}

    def run(self, outputs: str | None = None) -> dict[str, Any]:
        """Do the work once, timed; save what it returns to the file ``outputs`` if given."""
        gc.collect()
        time.sleep(_SETTLE)
        others = OtherProcesses()
        begin = time.perf_counter()
        results = self._once()
        timing = {"seconds": time.perf_counter() - begin, "others": others.seconds()}
        if outputs is not None:
            arrays: dict[str, Any] = {name: _to_numpy(value) for name, value in results.items()}
            np.savez(outputs, **arrays)
        return timing

    def peak(self) -> dict[str, Any]:
        """Do the work once and answer its peak memory."""
        return {"bytes": peak_bytes(self._once, self._device)}

    def _once(self) -> Mapping[str, Any]:
        if self._run is None:
            raise RuntimeError("a strategy must be loaded before it is run")
        results = self._run()
        if self._device != "cpu":
            import torch

            torch.cuda.synchronize(self._device)
        return results


def _resolve(path: str) -> Callable[..., Run]:
    module, separator, name = path.partition(":")
    if not separator:
        raise ValueError(f"factory must read 'package.module:function', got {path!r}")
    return getattr(import_module(module), name)


def _to_numpy(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a torch tensor, perhaps on another device
        value = value.detach().cpu()
    return np.asarray(value)


def _answer(session: Session, line: str) -> dict[str, Any]:
    request = json.loads(line)
    try:
        return getattr(session, request.pop("do"))(**request)
    except Exception as error:  # the parent reports it beside the other strategies' figures
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"error": message, "traceback": traceback.format_exc()}


def _end_with_parent() -> None:
    """Keep no machine busy for a parent that was killed in mid-repetition."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Answer requests until standard input closes."""
    _end_with_parent()
    # Libraries print to standard output: keep the channel of answers to ourselves.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        session = Session()
        for line in sys.stdin:
            print(json.dumps(_answer(session, line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
