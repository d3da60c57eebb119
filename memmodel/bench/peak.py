"""Peak memory of one call, above what the process holds before it."""

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): resets VmHWM to the current resident size


def peak_bytes(run: Callable[[], Any], device: str) -> int:
    """Call ``run`` once and return its peak memory above the present level, in bytes.

    CUDA: the caching allocator's ``max_memory_allocated``. CPU: peak resident size, so that
    allocations of any library count, not only PyTorch's. Free heap pages are first handed back to
    the system: otherwise the call could reuse them unseen.

    Args:
        run: the work; call it once beforehand, so that one-off set-up does not count.
        device: ``"cpu"`` or a CUDA device.

    Raises:
        OSError: the operating system does not report resettable peak memory (Linux does).
    """
    gc.collect()
    return _host_peak(run) if device == "cpu" else _cuda_peak(run, device)


def _cuda_peak(run: Callable[[], Any], device: str) -> int:
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    outputs = run()
    torch.cuda.synchronize(device)
    del outputs
    return torch.cuda.max_memory_allocated(device) - before


def _host_peak(run: Callable[[], Any]) -> int:
    if not _CLEAR_REFS.exists():
        raise OSError(
            f"peak memory on the CPU needs Linux's {_CLEAR_REFS}, "
            f"which this system ({sys.platform}) does not have"
        )
    _return_free_heap()
    _CLEAR_REFS.write_text(_RESET_PEAK)
    before = _status_bytes("VmRSS")
    outputs = run()
    peak = _status_bytes("VmHWM") - before
    del outputs
    return peak


def _return_free_heap() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc; musl returns freed memory by itself
        libc.malloc_trim(0)


def _status_bytes(key: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {key}")
