"""Description of the machine and versions, to be printed beside every figure."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("torch", "numpy", "jax", "equinox", "tensorflow-cpu", "onnxruntime-gpu", "onnxruntime")


def describe_machine(device: str = "cpu") -> dict[str, str]:
    """Processor, cores, memory, system and installed versions of the packages that matter.

    Args:
        device: a CUDA device adds its name.
    """
    facts = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    if hasattr(os, "sysconf"):  # not on Windows
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        facts["memory"] = f"{pages * size / 2**30:.0f} GiB"
    facts |= {name: found for name in _PACKAGES if (found := _version(name))}
    if device != "cpu":
        import torch

        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
