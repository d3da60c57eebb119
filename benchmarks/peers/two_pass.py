"""Fill the memory without autograd, then run every step again on the finished memory.

The second pass reads slots as constants and reports their gradients through a leaf per step, walked
in reverse: linear memory from public PyTorch operations only.
"""

import torch
from torch import Tensor, nn

from peers.torch_step import Run, plain_cell, training_step


class _TwoPass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cell: nn.Module, steps: int, start: Tensor, *parameters: Tensor) -> Tensor:
        memory = start.new_empty(start.shape[0], steps + 1, start.shape[2])
        memory[:, :1] = start
        for i in range(1, steps + 1):
            memory[:, i] = cell(memory[:, :i])
        ctx.cell = cell
        ctx.save_for_backward(memory, *parameters)
        return memory

    @staticmethod
    def backward(ctx, gradient: Tensor):
        memory, *parameters = ctx.saved_tensors
        gradient = gradient.clone()
        totals = [torch.zeros_like(parameter) for parameter in parameters]
        for i in range(memory.shape[1] - 1, 0, -1):
            prefix = memory[:, :i].detach().requires_grad_()
            with torch.enable_grad():
                slot = ctx.cell(prefix)
            to_prefix, *to_parameters = torch.autograd.grad(
                slot, [prefix, *parameters], gradient[:, i]
            )
            gradient[:, :i] += to_prefix
            for total, part in zip(totals, to_parameters, strict=True):
                total += part
        return None, None, gradient[:, :1], *totals


def make(workload: str, *, device: str = "cpu") -> Run:
    def wrap(cell: nn.Module):
        return lambda start, steps: _TwoPass.apply(cell, steps, start, *cell.parameters())

    return training_step(workload, plain_cell, wrap, device)
