"""``memory = torch.cat([memory, cell(memory)])``: what people write today."""

import torch
from torch import Tensor, nn

from peers.torch_step import Run, plain_cell, training_step


def make(workload: str, *, sdpa: bool = False, compile: bool = False, device: str = "cpu") -> Run:
    def wrap(cell: nn.Module):
        step = torch.compile(cell, dynamic=True) if compile else cell

        def roll(start: Tensor, steps: int) -> Tensor:
            memory = start
            for _ in range(steps):
                memory = torch.cat([memory, step(memory).unsqueeze(1)], dim=1)
            return memory

        return roll

    return training_step(workload, lambda shapes: plain_cell(shapes, sdpa=sdpa), wrap, device)
