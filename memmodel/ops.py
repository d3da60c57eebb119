"""Registered slot-write ops."""

import torch
from torch import Tensor


def slot_write(memory: Tensor, value: Tensor, index: Tensor) -> Tensor:
    """Write ``value`` into a copy of ``memory``."""
    memory = memory.clone()
    slot_write_(memory, value, index)
    return memory


def slot_write_(memory: Tensor, value: Tensor, index: Tensor) -> None:
    """Write ``value`` into ``memory`` in place."""
    rows = torch.arange(memory.shape[0], device=memory.device)
    for j in range(value.shape[1]):
        memory[rows, index + j] = value[:, j]
