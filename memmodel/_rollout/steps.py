"""The two loops of a rollout over one preallocated memory: write slots, then walk back."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from memmodel._rollout.checks import check_slot

Step = Callable[..., Tensor]
StepInputs = tuple[Tensor, ...]
# (prefix, step's inputs, gradient of the slot, gradients of prefix and inputs to add to)
StepGradient = Callable[[Tensor, StepInputs, Tensor, Sequence[Tensor]], None]


def allocate(start: Tensor, steps: int) -> Tensor:
    """A memory ``(B, k0 + steps, *slot)`` whose first slots are ``start``."""
    batch, k0, *slot = start.shape
    memory = start.new_empty(batch, k0 + steps, *slot)
    memory[:, :k0] = start
    return memory


def step_inputs(inputs: Tensor | None, i: int) -> StepInputs:
    """What the cell receives beside the prefix at step ``i``."""
    return () if inputs is None else (inputs[:, i],)


def write_slots(
    step: Step,
    memory: Tensor,
    k0: int,
    inputs: Tensor | None,
    *,
    cast: bool,
    before_write: Callable[[int], None] | None = None,
    first: int = 0,
    stop: int | None = None,
) -> None:
    """Fill ``memory`` from slot ``k0 + first`` on.

    Args:
        step: makes the next slot from the prefix and the step's inputs.
        memory: ``(B, N, *slot)``, written in place; slots before ``k0`` are there already.
        k0: first slot that a step writes.
        inputs: per-step inputs ``(B, N - k0, ...)``.
        cast: whether slots of another floating dtype are cast to the memory's.
        before_write: called with the number of each step between its cell and its write.
        first: first step to run.
        stop: step to stop before; None runs to the end.
    """
    for i in range(first, memory.shape[1] - k0 if stop is None else stop):
        slot = step(memory[:, : k0 + i], *step_inputs(inputs, i))
        check_slot(slot, memory, cast=cast)
        if before_write is not None:
            before_write(i)
        memory[:, k0 + i].copy_(slot)


def walk_back(
    step_gradient: StepGradient,
    memory: Tensor,
    k0: int,
    inputs: Tensor | None,
    gradient: Tensor,
    *,
    grad_inputs: Tensor | None,
    before_step: Callable[[int], None],
) -> Tensor:
    """Backpropagate through the steps that filled ``memory``, last one first.

    When a step's turn comes, every reader of its slot has added to that slot's gradient.

    Args:
        step_gradient: runs the cell again on what the step read and adds its vector-Jacobian
            product to the gradients it is given.
        memory: the filled memory ``(B, N, *slot)``.
        k0: first slot that a step wrote.
        inputs: per-step inputs ``(B, N - k0, ...)``.
        gradient: gradient of the memory; what the steps' own gradients are added to.
        grad_inputs: gradient of the inputs to add to, where it is needed.
        before_step: called with the number of each step before it.

    Returns:
        The gradient of the start ``(B, k0, *slot)``.
    """
    for i in reversed(range(memory.shape[1] - k0)):
        before_step(i)
        k = k0 + i
        into = (gradient[:, :k], *step_inputs(grad_inputs, i))
        step_gradient(memory[:, :k], step_inputs(inputs, i), gradient[:, k], into)
    return gradient[:, :k0].clone(memory_format=torch.contiguous_format)
