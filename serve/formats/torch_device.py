"""Where torch models run, and arrays to tensors and back."""

import logging
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from memmodel.serve.signature import Array

_LOG = logging.getLogger("memmodel.serve")


def choose_device(device: str, name: str, threads: int | None) -> torch.device:
    """Turn "auto", "cpu", "cuda" or "cuda:N" into a device, and log the choice.

    Args:
        device: what the caller asked for.
        name: the model's name, for the log.
        threads: CPU threads of one call; torch has one setting for the whole process.

    Raises:
        RuntimeError: a GPU was asked for and there is none.
        ValueError: ``device`` is none of the above.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and (kind == "cpu" or not index.isdigit())):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise RuntimeError(
            f"device {device!r} was asked for, but torch sees {torch.cuda.device_count()} GPUs"
        )
    if threads is not None:
        torch.set_num_threads(threads)
    _LOG.info("%s runs on torch %s (%s)", name, torch.__version__, device)
    return torch.device(device)


def to_tensor(array: Array, device: torch.device) -> Tensor:
    """Copy an array to ``device``, or share it on the CPU."""
    array = np.ascontiguousarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16).to(device)
    if not array.flags.writeable:
        array = array.copy()  # torch warns that it could be written to
    return torch.from_numpy(array).to(device)


def to_array(tensor: Tensor) -> Array:
    """Bring a tensor to the host as an array of its own."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        bits: Any = tensor.view(torch.uint16).numpy().copy()
        return bits.view(ml_dtypes.bfloat16)
    return tensor.numpy().copy()
