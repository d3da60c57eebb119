"""The rollout as one registered op, so that a compiled model holds one node whatever the steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from memmodel._rollout.ambient import (
    RandomTape,
    autocast_as,
    autocast_dtype,
    fresh_parametrizations,
    generator_state,
    packed_size,
)
from memmodel._rollout.capture import CapturedCell, Cell
from memmodel._rollout.compiled import spread_slots
from memmodel._rollout.eager import refuse_second_order
from memmodel._rollout.foreign import refusing_foreign_tensors
from memmodel._rollout.guard import MutationGuard, check_repeats, refusing_writes
from memmodel._rollout.registry import compiled_cell, handle_of
from memmodel._rollout.steps import Step, allocate, step_inputs, walk_back, write_slots

_LIBRARY = torch.library.Library("memmodel", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
# tensors: those of the cell, in CapturedCell's order. state_bytes: size of a generator state, to
# record one per step that draws; 0 where no backward will need them. autocast: its dtype, if on.
_CELL = "Tensor[] tensors, int handle, ScalarType? autocast"
_LIBRARY.define(
    f"rollout(Tensor start, Tensor? inputs, {_CELL}, SymInt steps, int state_bytes)"
    " -> (Tensor memory, Tensor tape)",
    tags=_TAGS,
)
_LIBRARY.define(
    f"rollout_backward(Tensor grad, Tensor memory, Tensor tape, Tensor? inputs, {_CELL}, "
    "SymInt k0, bool[] needed) -> Tensor[]",
    tags=_TAGS,
)
_rollout = torch.ops.memmodel.rollout.default
_rollout_backward = torch.ops.memmodel.rollout_backward.default


@contextmanager
def _kernel() -> Iterator[None]:
    """The same dispatch in every call of a kernel, lest the compiler compiles once for each.

    Who calls a kernel has excluded the autograd keys, and at times the views' key with them.
    """
    views = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with (
        torch.no_grad(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._ExcludeDispatchKeyGuard(views),
        fresh_parametrizations(),
    ):
        yield


def _compiles(memory: Tensor, tape: RandomTape) -> bool:
    """Whether to compile the cell: not where compiled code would draw other random numbers than
    the first step drew, nor for complex numbers, for which inductor generates no code."""
    return not tape.drew and not memory.is_complex()


def _detached(
    memory: Tensor, inputs: Tensor | None, tensors: list[Tensor]
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """The same without gradients, which an op's kernel is given but the compiler must not see."""
    inputs = None if inputs is None else inputs.detach()
    return memory.detach(), inputs, [tensor.detach() for tensor in tensors]


@_kernel()
def _forward(
    start: Tensor,
    inputs: Tensor | None,
    tensors: list[Tensor],
    handle: int,
    autocast: torch.dtype | None,
    steps: int,
    state_bytes: int,
) -> tuple[Tensor, Tensor]:
    start, inputs, tensors = _detached(start, inputs, tensors)
    cell = compiled_cell(handle)
    captured, tape = CapturedCell(cell.cell), RandomTape(start.device)
    memory, k0 = allocate(start, steps), start.shape[1]
    guard = MutationGuard(captured, tensors, memory, inputs)

    def write(step: Step, first: int, stop: int, *, record: bool) -> None:
        write_slots(
            step,
            memory,
            k0,
            inputs,
            cast=autocast is not None,
            before_write=tape.record if record else None,
            first=first,
            stop=stop,
        )

    def write_one(own: Cell) -> None:
        write(refusing_writes(refusing_foreign_tensors(own)), 0, 1, record=True)
        guard.check_installed()

    with autocast_as(start.device.type, autocast):
        if steps:  # not compiled: shows what compiled code would hide
            captured.run(guard.tensors, write_one)
        compiled = _compiles(memory, tape)
        write(cell.step(guard.tensors, compiled=compiled), 1, steps, record=not compiled)
    guard.check_unwritten()
    guard.check_contents(tensors)
    if compiled:
        tape.record(steps)
        if tape.drew:
            raise RuntimeError(
                "cell must draw random numbers in its first step if it draws any, where it is "
                "compiled: run this rollout eagerly"
            )
    return memory, tape.pack(steps, state_bytes)


@_kernel()
def _backward(
    grad: Tensor,
    memory: Tensor,
    tape: Tensor,
    inputs: Tensor | None,
    tensors: list[Tensor],
    handle: int,
    autocast: torch.dtype | None,
    k0: int,
    needed: list[bool],
) -> list[Tensor]:
    memory, inputs, tensors = _detached(memory, inputs, tensors)
    needs_start, needs_inputs, *needs = needed
    wanted = [i for i, need in enumerate(needs) if need]
    totals = [torch.zeros_like(tensors[i]) for i in wanted]
    grad_inputs = None if inputs is None or not needs_inputs else torch.zeros_like(inputs)
    random = RandomTape.unpack(memory.device, tape, memory.shape[1] - k0)
    cell, last = compiled_cell(handle), memory.shape[1] - k0 - 1
    compiled = _compiles(memory, random)
    with random.replaying(), autocast_as(memory.device.type, autocast):
        if last >= 0:
            random.rewind(last)
            repeat = cell.step(tensors, compiled=False)
            slot = repeat(memory[:, :-1], *step_inputs(inputs, last))
            check_repeats(slot, memory[:, -1], cast=autocast is not None)
        grad_start = walk_back(
            cell.step_gradient(tensors, wanted, totals, compiled=compiled),
            memory,
            k0,
            inputs,
            spread_slots(grad) if compiled else grad.clone(memory_format=torch.contiguous_format),
            grad_inputs=grad_inputs,
            before_step=random.rewind,
        )
    grads = [grad_start] if needs_start else []
    return [*grads, *([] if grad_inputs is None else [grad_inputs]), *totals]


_LIBRARY.impl("rollout", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("rollout_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("memmodel::rollout", lib=_LIBRARY)
def _(
    start: Tensor,
    inputs: Tensor | None,
    tensors: list[Tensor],
    handle: int,
    autocast: torch.dtype | None,
    steps: int,
    state_bytes: int,
) -> tuple[Tensor, Tensor]:
    batch, k0, *slot = start.shape
    tape = torch.empty(packed_size(steps, state_bytes), dtype=torch.uint8, device="cpu")
    return start.new_empty(batch, k0 + steps, *slot), tape


@torch.library.register_fake("memmodel::rollout_backward", lib=_LIBRARY)
def _(
    grad: Tensor,
    memory: Tensor,
    tape: Tensor,
    inputs: Tensor | None,
    tensors: list[Tensor],
    handle: int,
    autocast: torch.dtype | None,
    k0: int,
    needed: list[bool],
) -> list[Tensor]:
    batch, _, *slot = memory.shape
    needs_start, needs_inputs, *needs = needed
    grads = [memory.new_empty(batch, k0, *slot)] if needs_start else []
    grads += [torch.empty_like(inputs)] if inputs is not None and needs_inputs else []
    needy = [tensor for tensor, need in zip(tensors, needs, strict=True) if need]
    return grads + [torch.empty_like(tensor) for tensor in needy]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    start, step_inputs, tensors, handle, autocast, _, _ = inputs
    memory, tape = output
    ctx.mark_non_differentiable(tape)
    ctx.save_for_backward(memory, tape, step_inputs, *tensors)
    ctx.cell = handle, autocast, start.shape[1]


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    memory, tape, inputs, *tensors = ctx.saved_tensors
    needs_start, needs_inputs, needs, *_ = ctx.needs_input_grad
    needed = [needs_start, needs_inputs, *(needs or [False] * len(tensors))]
    grads = iter(_rollout_backward(grad, memory, tape, inputs, tensors, *ctx.cell, needed))
    grad_start, grad_inputs, *totals = (next(grads) if need else None for need in needed)
    return grad_start, grad_inputs, totals, None, None, None, None


torch.library.register_autograd(
    "memmodel::rollout", _differentiate, setup_context=_save_for_backward, lib=_LIBRARY
)
torch.library.register_autograd("memmodel::rollout_backward", refuse_second_order, lib=_LIBRARY)


def rollout_op(cell: nn.Module, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
    """What ``rollout_eager`` returns, as one op that the compiler does not look into."""
    tensors = [*cell.parameters(), *cell.buffers()]
    device = start.device.type
    needy = (start, *tensors) if inputs is None else (start, inputs, *tensors)
    records = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in needy)
    id(cell)  # what was traced holds for this cell alone
    return _rollout(
        start,
        inputs,
        tensors,
        _handle_of(cell),
        autocast_dtype(device),
        steps,
        _state_bytes(device) if records else 0,
    )[0]


_handle_of = torch.compiler.assume_constant_result(handle_of)


@torch.compiler.assume_constant_result
def _state_bytes(device_type: str) -> int:
    return generator_state(torch.device(device_type)).numel()
