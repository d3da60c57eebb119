"""What arguments the slot-write ops accept: one set of rules for eager, fake and compiled calls."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def check_arguments(memory: Tensor, value: Tensor, index: Tensor) -> None:
    """Check everything about the arguments that is known without their contents.

    Raises:
        ValueError: a shape or device is not what the ops take.
        TypeError: a dtype is not what the ops take.
    """
    if memory.ndim < 2:
        raise ValueError(f"memory must have shape (B, N, *slot), got {tuple(memory.shape)}")
    rows, slots = memory.shape[:2]
    if (
        value.ndim != memory.ndim
        or value.shape[0] != rows
        or value.shape[1] > slots
        or value.shape[2:] != memory.shape[2:]
    ):
        raise ValueError(
            f"value must have shape (B, L, *slot) with L ≤ N for memory (B, N, *slot) = "
            f"{tuple(memory.shape)}, got {tuple(value.shape)}"
        )
    if index.ndim > 1 or (index.ndim == 1 and index.shape[0] != rows):
        raise ValueError(f"index must have shape () or (B,) = ({rows},), got {tuple(index.shape)}")
    if value.dtype != memory.dtype:
        raise TypeError(f"value must have memory's dtype {memory.dtype}, got {value.dtype}")
    if index.dtype != torch.int64:
        raise TypeError(f"index must have dtype torch.int64, got {index.dtype}")
    if value.device != memory.device:
        raise ValueError(f"value must be on memory's device {memory.device}, got {value.device}")
    if index.device != memory.device and not (index.ndim == 0 and index.device.type == "cpu"):
        raise ValueError(
            f"index must be on memory's device {memory.device} (or have shape () on the CPU), "
            f"got shape {tuple(index.shape)} on {index.device}"
        )


def in_forward_mode() -> bool:
    """Whether ``torch.autograd.forward_ad.dual_level`` is at work."""
    return forward_ad._current_level >= 0


def refuse_tangents(what: str, *tensors: Tensor) -> None:
    """Raise RuntimeError if a tensor carries a tangent, which would be lost without a word."""
    if not in_forward_mode():
        return
    for tensor in tensors:
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(
                f"{what} has no forward-mode derivative: differentiate backward, or use "
                "memmodel.rollout or torch.cat"
            )


def check_writable(memory: Tensor) -> None:
    """Check that every element of a memory that is written in place has a place of its own.

    Raises:
        ValueError: ``memory`` is expanded, so that one write would show in several places.
    """
    sizes, strides = memory.shape, memory.stride()
    if any(stride == 0 and size > 1 for size, stride in zip(sizes, strides, strict=True)):
        raise ValueError(
            f"memory must not be expanded where it is written in place, got shape {tuple(sizes)} "
            f"with strides {strides}: write to a clone() of it"
        )


def check_range(low: int, high: int, *, slots: int, length: int) -> None:
    """Check index values known on the host.

    Args:
        low: smallest first slot written.
        high: largest first slot written.
        slots: N, slots in the memory.
        length: L, slots written per row.

    Raises:
        IndexError: a row's write would leave the memory.
    """
    last = slots - length
    if low < 0 or high > last:
        raise IndexError(
            f"index must be between 0 and N - L = {slots} - {length} = {last}, "
            f"got {low if low < 0 else high}"
        )
