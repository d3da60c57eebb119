"""The rollout as plain autograd sees it, keeping the cell's activations."""

import torch
from torch import Tensor

from memmodel._rollout.capture import Cell
from memmodel._rollout.steps import step_inputs


def rollout_plain(cell: Cell, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
    """Memory of ``start`` and ``steps`` slots of ``cell``, differentiable any number of times."""
    memory = start
    for i in range(steps):
        slot = cell(memory, *step_inputs(inputs, i))
        memory = torch.cat([memory, slot.unsqueeze(1)], dim=1)
    return memory
