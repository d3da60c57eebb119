"""The rollout as plain autograd sees it, keeping the cell's activations."""

import torch
from torch import Tensor

from memmodel._rollout.capture import Cell
from memmodel._rollout.checks import check_slot
from memmodel._rollout.steps import step_inputs
from memmodel.memory import SlotMemory


def rollout_plain(cell: Cell, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
    """Memory of ``start`` and ``steps`` slots of ``cell``, differentiable any number of times."""
    batch, k0, *slot_shape = start.shape
    memory = SlotMemory((batch, k0 + steps, *slot_shape), dtype=start.dtype, device=start.device)
    memory.append(start)
    cast = torch.is_autocast_enabled(start.device.type)
    for i in range(steps):
        slot = cell(memory.read(), *step_inputs(inputs, i))
        check_slot(slot, start, cast=cast)
        memory.append(slot.to(start.dtype))
    return memory.read()
