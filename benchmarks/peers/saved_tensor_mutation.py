"""PyTorch's own ``allow_mutation_on_saved_tensors``: saved tensors are cloned when overwritten.

The prefix is read through 3-D ``scaled_dot_product_attention`` or ``bmm`` on a slice of one buffer.
"""

import torch
from torch import Tensor, nn

from peers.torch_step import Run, plain_cell, training_step


def make(workload: str, *, device: str = "cpu") -> Run:
    def wrap(cell: nn.Module):
        def roll(start: Tensor, steps: int) -> Tensor:
            memory = start.new_zeros(start.shape[0], steps + 1, start.shape[2])
            memory[:, :1] = start
            for i in range(1, steps + 1):
                memory[:, i] = cell(memory[:, :i])
            return memory

        return roll

    run = training_step(workload, plain_cell, wrap, device)

    def run_with_mutation() -> dict[str, Tensor]:
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            return run()

    return run_with_mutation
