"""Eager rollout: one autograd node for all steps, which runs the cell again in backward."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from memmodel._rollout.ambient import RandomTape, autocast_as, autocast_dtype
from memmodel._rollout.capture import CapturedCell, Cell
from memmodel._rollout.checks import check_slot
from memmodel._rollout.guard import (
    MutationGuard,
    check_gradients_reach,
    check_repeats,
    sequence_mark,
)
from memmodel._rollout.steps import Step, StepGradient, StepInputs, allocate, walk_back, write_slots


# The compiler comes here with functions only, in whose reach it could not find the tensors.
@torch.compiler.disable(reason="cell must be an nn.Module for a rollout to be compiled")
def rollout_eager(cell: Cell, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
    """Memory of ``start`` and ``steps`` slots of ``cell``, keeping nothing but that memory."""
    if torch.is_grad_enabled():
        captured = CapturedCell(cell)
        return _Rollout.apply(captured, steps, start, inputs, *captured.tensors)
    memory = allocate(start, steps)
    cast = autocast_dtype(start.device.type) is not None
    write_slots(cell, memory, start.shape[1], inputs, cast=cast)
    return memory


class _Rollout(torch.autograd.Function):
    """Saves the final memory only.

    Backward walks the steps in reverse. The slots that a step read are the first slots of the
    final memory, so the cell runs again on a view of it; the gradients of all reads add up in one
    buffer of the memory's size.
    """

    @staticmethod
    def forward(
        ctx: Any,
        captured: CapturedCell,
        steps: int,
        start: Tensor,
        inputs: Tensor | None,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.captured, ctx.k0 = captured, start.shape[1]
        ctx.autocast = autocast_dtype(start.device.type)
        ctx.tape = RandomTape(start.device)
        memory = allocate(start, steps)
        guard = MutationGuard(captured, tensors, memory, inputs)
        leaves = [
            tensor.requires_grad_(needed)
            for tensor, needed in zip(guard.tensors, ctx.needs_input_grad[4:], strict=True)
        ]

        def before_write(i: int) -> None:
            guard.check_installed()
            ctx.tape.record(i)

        def write(cell: Cell) -> None:
            write_slots(
                guard.watching(_probing(cell, leaves)),
                memory,
                ctx.k0,
                inputs,
                cast=ctx.autocast is not None,
                before_write=before_write,
            )

        captured.run(leaves, write)
        ctx.save_for_backward(memory, inputs, *tensors)
        return memory

    @staticmethod
    def backward(ctx: Any, grad_memory: Tensor) -> tuple[Tensor | None, ...]:
        memory, inputs, *tensors = ctx.saved_tensors
        needs_start, needs_inputs, *needs = ctx.needs_input_grad[2:]
        cast = ctx.autocast is not None
        leaves = [
            tensor.detach().requires_grad_(needed)
            for tensor, needed in zip(tensors, needs, strict=True)
        ]
        totals: list[Tensor | None] = [None] * len(leaves)
        grad_inputs = torch.zeros_like(inputs) if needs_inputs else None

        def walk(cell: Cell) -> Tensor:
            return walk_back(
                _adding_gradients(cell, leaves, totals, memory, cast=cast),
                memory.detach(),
                ctx.k0,
                inputs,
                grad_memory.clone(memory_format=torch.contiguous_format),
                grad_inputs=grad_inputs,
                before_step=ctx.tape.rewind,
            )

        autocast = autocast_as(memory.device.type, ctx.autocast)
        with torch.no_grad(), ctx.tape.replaying(), autocast:
            grad_start = ctx.captured.run(leaves, walk)
        grads = (grad_start if needs_start else None, grad_inputs, *totals)
        if torch.is_grad_enabled():  # create_graph
            grads = _FirstOrderOnly.apply(torch.empty((), requires_grad=True), *grads)
        return None, None, *grads


def refuse_second_order(ctx: Any, *grads: Any) -> NoReturn:
    """Backward of what computes a rollout's gradients."""
    raise RuntimeError(
        "rollout has first-order gradients only where recompute=True: for higher orders use "
        "memmodel.rollout(..., recompute=False)"
    )


class _FirstOrderOnly(torch.autograd.Function):
    """Passes gradients through; raises where someone differentiates them."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if grad is None else grad.view_as(grad) for grad in grads)

    backward = staticmethod(refuse_second_order)


def _probing(cell: Cell, tensors: Sequence[Tensor]) -> Step:
    """``cell``, its first call checked for gradients that would be lost."""
    probed = False

    def step(prefix: Tensor, *inputs: Tensor) -> Tensor:
        nonlocal probed
        if probed:
            return cell(prefix, *inputs)
        probed = True
        with torch.enable_grad():
            mark = sequence_mark()
            slot = cell(prefix, *inputs)
        if isinstance(slot, Tensor) and slot.requires_grad:
            check_gradients_reach(slot, tensors, mark)
            slot = slot.detach()
        return slot

    return step


def _adding_gradients(
    cell: Cell, leaves: Sequence[Tensor], totals: list[Tensor | None], memory: Tensor, *, cast: bool
) -> StepGradient:
    """One step of backward; adds the gradients of ``leaves`` to ``totals``, None where unused."""
    wanted = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]

    def step_gradient(
        prefix: Tensor, inputs: StepInputs, grad_slot: Tensor, into: Sequence[Tensor]
    ) -> None:
        reads = [prefix.detach().requires_grad_()]
        reads += [x.detach().requires_grad_(len(into) > 1) for x in inputs]
        with torch.enable_grad():
            slot = cell(*reads)
        check_slot(slot, memory, cast=cast)
        k = prefix.shape[1]
        if k == memory.shape[1] - 1:  # one step tells, at the price of one synchronisation
            check_repeats(slot, memory[:, k], cast=cast)
        if not slot.requires_grad:
            return
        # The first step was checked in forward; this one may use, or have kept, other tensors.
        check_gradients_reach(slot, [*reads, *leaves])
        sources = reads[: len(into)] + [leaves[i] for i in wanted]
        grads = torch.autograd.grad(slot, sources, grad_slot.to(slot.dtype), allow_unused=True)
        for total, grad in zip(into, grads, strict=False):
            if grad is not None:
                total.add_(grad)
        for i, grad in zip(wanted, grads[len(into) :], strict=True):
            if grad is not None:
                sum_so_far = totals[i]
                totals[i] = grad.clone() if sum_so_far is None else sum_so_far.add_(grad)

    return step_gradient
