"""A hand-made ``autograd.Function`` that writes through ``.data``, behind autograd's back.

The memory is preallocated, and every step's Function returns the same storage, so that no prefix is
copied. Each read's backward still makes a full-size gradient and adds it.
"""

import torch
from torch import Tensor, nn

from peers.torch_step import Run, plain_cell, training_step


class _Write(torch.autograd.Function):
    """Write a slot; the version counter does not see it."""

    @staticmethod
    def forward(ctx, memory: Tensor, slot: Tensor, index: int) -> Tensor:
        ctx.index = index
        memory.data[:, index] = slot
        return memory.view_as(memory)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, gradient[:, ctx.index], None


def make(workload: str, *, device: str = "cpu") -> Run:
    def wrap(cell: nn.Module):
        def roll(start: Tensor, steps: int) -> Tensor:
            memory = start.new_empty(start.shape[0], steps + 1, start.shape[2])
            memory = _Write.apply(memory, start[:, 0], 0)
            for i in range(1, steps + 1):
                memory = _Write.apply(memory, cell(memory[:, :i]), i)
            return memory

        return roll

    return training_step(workload, plain_cell, wrap, device)
