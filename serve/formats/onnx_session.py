"""ONNX Runtime sessions: provider, options, and which device they ended up on."""

import ctypes
import logging
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnxruntime as ort

_LOG = logging.getLogger("memmodel.serve")


@dataclass(frozen=True)
class Device:
    """Where a session keeps its tensors: "cpu" or "cuda", and the index of the GPU."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


def open_session(
    model: str | bytes, path: Path, device: str, threads: int | None
) -> tuple[ort.InferenceSession, Device]:
    """Load a model on the device asked for and log one line that says where it runs.

    Args:
        model: file name or serialized model.
        path: the artifact, for the log and for weights stored beside it.
        device: "auto", "cpu", "cuda" or "cuda:N".
        threads: threads of one operator; None: one per physical core.

    Raises:
        RuntimeError: "cuda" was asked for and cannot be used, or the file cannot be loaded.
        ValueError: ``device`` is none of the above.
    """
    wanted = choose_device(device)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or 0
    # The memory grows: a plan of activations per input shape would be kept for each length.
    options.enable_mem_pattern = False
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(path.parent.resolve())
    )
    providers: list[str | tuple[str, dict[str, str]]] = ["CPUExecutionProvider"]
    if wanted.kind == "cuda":
        ort.preload_dlls()
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": str(wanted.index)}))
    try:
        session = ort.InferenceSession(model, options, providers=providers)
    except Exception as error:  # its exception types share no public base class
        raise RuntimeError(f"ONNX Runtime cannot load {path} on {wanted}: {error}") from error
    if wanted.kind == "cuda" and session.get_providers()[0] != "CUDAExecutionProvider":
        if device != "auto":
            raise RuntimeError(f"device {device!r}: ONNX Runtime could not start its CUDA provider")
        wanted = Device("cpu")
    _LOG.info("%s runs on %s (%s)", path.name, session.get_providers()[0], wanted)
    return session, wanted


def choose_device(device: str) -> Device:
    """Turn "auto", "cpu", "cuda" or "cuda:N" into a device that this machine has.

    Raises:
        RuntimeError: a GPU was asked for and there is none.
        ValueError: ``device`` is none of the above.
    """
    kind, _, index = device.partition(":")
    if device == "auto":
        return Device("cuda") if _gpus() else Device("cpu")
    if device == "cpu":
        return Device("cpu")
    if kind != "cuda" or (index and not index.isdigit()):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if int(index or 0) >= _gpus():
        raise RuntimeError(f"device {device!r} was asked for, but ONNX Runtime sees {_gpus()} GPUs")
    return Device("cuda", int(index or 0))


@cache
def _gpus() -> int:
    """GPUs that the CUDA provider can use.

    ``get_available_providers`` lists what was built in, also where there is no GPU; loading the
    provider to find out prints errors. So ask the driver.
    """
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return 0
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0  # no driver installed
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
