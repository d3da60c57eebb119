"""Schemas of the slot-write ops and what the dispatcher needs to know about them."""

from typing import Any

import torch
from torch import Tensor

from memmodel.ops import kernels
from memmodel.ops.rules import check_arguments, check_writable, refuse_tangents

# `Library` rather than `torch.library.custom_op`: less than half the cost per call.
_LIBRARY = torch.library.Library("memmodel", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define("slot_write(Tensor memory, Tensor value, Tensor index) -> Tensor", tags=_TAGS)
_LIBRARY.define("slot_write_(Tensor(a!) memory, Tensor value, Tensor index) -> ()", tags=_TAGS)
_LIBRARY.impl("slot_write", kernels.write_copy, "CompositeExplicitAutograd")
_LIBRARY.impl("slot_write_", kernels.write, "CompositeExplicitAutograd")

_slot_write = torch.ops.memmodel.slot_write.default
_slot_write_ = torch.ops.memmodel.slot_write_.default


def slot_write(memory: Tensor, value: Tensor, index: Tensor) -> Tensor:
    """Write ``value`` into a copy of ``memory``: ONNX TensorScatter-24, linear mode, slot axis 1.

    Row b of the result is ``memory[b]`` with slots ``index[b]`` to ``index[b] + L - 1`` replaced by
    ``value[b]``. Differentiable to any order, batched by ``torch.vmap``.

    Args:
        memory: ``(B, N, *slot)``, any dtype.
        value: slots to write, ``(B, L, *slot)`` with L ≤ N, memory's dtype and device.
        index: first slot written, per row ``(B,)`` or for all rows ``()``; int64. On memory's
            device, or on the CPU if it has shape ``()``.

    Returns:
        The new memory ``(B, N, *slot)``, contiguous.

    Raises:
        ValueError: a shape or device breaks a rule above.
        TypeError: a dtype breaks a rule above.
        IndexError: a row's write would leave the memory. An index on another device than the CPU is
            checked by a device-side assertion, which costs no synchronisation.
    """
    if not torch.compiler.is_compiling():
        refuse_tangents("slot_write", memory, value)
    return _slot_write(memory, value, index)


def slot_write_(memory: Tensor, value: Tensor, index: Tensor) -> None:
    """Write ``value`` into ``memory`` in place, with O(L) work: for inference and serving.

    Takes and raises what :func:`slot_write` does. Has no gradient, and says so.

    Args:
        memory: ``(B, N, *slot)``, written in place.
        value: slots to write, ``(B, L, *slot)``.
        index: first slot written, ``(B,)`` or ``()``.

    Raises:
        ValueError: ``memory`` is expanded.
        RuntimeError: grad mode is on and ``memory`` or ``value`` requires grad.
    """
    if not torch.compiler.is_compiling():
        refuse_tangents("slot_write_", memory, value)
    _slot_write_(memory, value, index)


@torch.library.register_fake("memmodel::slot_write", lib=_LIBRARY)
def _(memory: Tensor, value: Tensor, index: Tensor) -> Tensor:
    check_arguments(memory, value, index)
    return memory.new_empty(memory.shape)


@torch.library.register_fake("memmodel::slot_write_", lib=_LIBRARY)
def _(memory: Tensor, value: Tensor, index: Tensor) -> None:
    check_arguments(memory, value, index)
    check_writable(memory)


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    _, value, index = inputs
    ctx.save_for_backward(index)
    ctx.value_shape = value.shape


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    (index,) = ctx.saved_tensors
    grad_memory = grad_value = None
    if ctx.needs_input_grad[0]:
        grad_memory = _slot_write(grad, grad.new_zeros(()).expand(ctx.value_shape), index)
    if ctx.needs_input_grad[1]:
        slots = kernels.slots_at(index.to(grad.device), ctx.value_shape[1])
        slots = slots.reshape(*slots.shape, *(1 for _ in ctx.value_shape[2:]))
        grad_value = grad.gather(1, slots.expand(ctx.value_shape))
    return grad_memory, grad_value, None


torch.library.register_autograd(
    "memmodel::slot_write", _backward, setup_context=_save_for_backward, lib=_LIBRARY
)


def _refuse_autograd(keyset: Any, memory: Tensor, value: Tensor, index: Tensor) -> None:
    # Without a kernel for the autograd key, gradients would be dropped without a word.
    if torch.is_grad_enabled() and (memory.requires_grad or value.requires_grad):
        needy = "memory" if memory.requires_grad else "value"
        raise RuntimeError(
            f"slot_write_ has no gradient, but {needy} requires grad: use memmodel.slot_write or "
            "memmodel.SlotMemory, or call slot_write_ under torch.no_grad()"
        )
    _slot_write_.redispatch(keyset & torch._C._after_autograd_keyset, memory, value, index)


_LIBRARY.impl("slot_write_", _refuse_autograd, "Autograd", with_keyset=True)


@torch.library.register_vmap("memmodel::slot_write", lib=_LIBRARY)
def _(
    info: Any, in_dims: tuple[int | None, ...], memory: Tensor, value: Tensor, index: Tensor
) -> tuple[Tensor, int]:
    size = info.batch_size
    memory, value, index = (
        t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip((memory, value, index), in_dims, strict=True)
    )
    rows = memory.shape[1]
    # One entry per row of every batch, where the merged rows are.
    index = (index if index.ndim == 2 else index.unsqueeze(1)).expand(size, rows)
    index = index.flatten().to(memory.device)
    result = _slot_write(memory.flatten(0, 1), value.flatten(0, 1), index)
    return result.unflatten(0, (size, rows)), 0


@torch.library.register_vmap("memmodel::slot_write_", lib=_LIBRARY)
def _(
    info: Any, in_dims: tuple[int | None, ...], memory: Tensor, value: Tensor, index: Tensor
) -> tuple[None, None]:
    if in_dims[0] is None:
        raise RuntimeError(
            "memory must be batched by vmap where value or index is: slot_write_ cannot write "
            "several values into one memory"
        )
    # One call per memory: a merged batch dimension is not a view for all strides.
    batches = (
        [t] * info.batch_size if dim is None else t.unbind(dim)
        for t, dim in zip((memory, value, index), in_dims, strict=True)
    )
    for one in zip(*batches, strict=True):
        _slot_write_(*one)
    return None, None
