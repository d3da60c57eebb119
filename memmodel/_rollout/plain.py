"""The rollout as plain autograd sees it, keeping the cell's activations."""

import torch
from torch import Tensor

from memmodel._rollout.ambient import autocast_dtype
from memmodel._rollout.capture import Cell
from memmodel._rollout.checks import check_slot
from memmodel._rollout.steps import step_inputs
from memmodel.memory import SlotMemory
from memmodel.ops.rules import in_forward_mode


def rollout_plain(cell: Cell, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
    """Memory of ``start`` and ``steps`` slots of ``cell``, differentiable any number of times."""
    cast = autocast_dtype(start.device.type) is not None
    memory = _Concatenated(start) if in_functorch() else _preallocated(start, steps)
    for i in range(steps):
        slot = cell(memory.read(), *step_inputs(inputs, i))
        check_slot(slot, start, cast=cast)
        memory.append(slot.to(start.dtype))
    return memory.read()


def in_functorch() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is at work.

    The first allows no writes, the second would not see them.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or in_forward_mode()


class _Concatenated:
    """The memory as a value, for transforms that allow no writes."""

    def __init__(self, start: Tensor) -> None:
        self._content = start

    def append(self, slot: Tensor) -> None:
        self._content = torch.cat([self._content, slot.unsqueeze(1)], dim=1)

    def read(self) -> Tensor:
        return self._content


def _preallocated(start: Tensor, steps: int) -> SlotMemory:
    batch, k0, *slot_shape = start.shape
    memory = SlotMemory((batch, k0 + steps, *slot_shape), dtype=start.dtype, device=start.device)
    memory.append(start)
    return memory
