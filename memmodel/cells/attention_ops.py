"""The attention rollout as a registered op: what the dispatcher and autograd need to know."""

from typing import Any

import torch
from torch import Tensor

from memmodel._rollout.eager import refuse_second_order
from memmodel.cells import attention_backward, attention_forward
from memmodel.cells.attention_forward import Weights
from memmodel.cells.fast import in_own_dtype

_LIBRARY = torch.library.Library("memmodel", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_WEIGHTS = ", ".join(f"Tensor {name}" for name in Weights._fields)
_LIBRARY.define(
    f"attention_rollout(Tensor start, Tensor? inputs, {_WEIGHTS}, SymInt steps, int heads, "
    "float scale) -> Tensor",
    tags=_TAGS,
)
_LIBRARY.define(
    f"attention_rollout_backward(Tensor grad, Tensor memory, Tensor? inputs, {_WEIGHTS}, "
    "SymInt first, int heads, float scale) -> Tensor[]",
    tags=_TAGS,
)

attention_rollout = torch.ops.memmodel.attention_rollout.default
_attention_rollout_backward = torch.ops.memmodel.attention_rollout_backward.default


@in_own_dtype
def _forward(start: Tensor, inputs: Tensor | None, *arguments: Any) -> Tensor:
    *weights, steps, heads, scale = arguments
    return attention_forward.forward(start, inputs, Weights(*weights), steps, heads, scale)


@in_own_dtype
def _backward(grad: Tensor, memory: Tensor, inputs: Tensor | None, *arguments: Any) -> list[Tensor]:
    *weights, first, heads, scale = arguments
    grads = attention_backward.backward(
        grad, memory, inputs, Weights(*weights), first=first, heads=heads, scale=scale
    )
    return [grads.start, *([] if grads.inputs is None else [grads.inputs]), *grads.weights]


_LIBRARY.impl("attention_rollout", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("attention_rollout_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("memmodel::attention_rollout", lib=_LIBRARY)
def _(start: Tensor, inputs: Tensor | None, *arguments: Any) -> Tensor:
    steps = arguments[-3]
    batch, k0, width = start.shape
    return start.new_empty(batch, k0 + steps, width)


@torch.library.register_fake("memmodel::attention_rollout_backward", lib=_LIBRARY)
def _(grad: Tensor, memory: Tensor, inputs: Tensor | None, *arguments: Any) -> list[Tensor]:
    *weights, first, _, _ = arguments
    start = memory.new_empty(memory.shape[0], first, memory.shape[2])
    others = weights if inputs is None else [inputs, *weights]
    return [start, *(other.new_empty(other.shape) for other in others)]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    start, step_inputs, *weights, _, heads, scale = inputs
    ctx.save_for_backward(output, step_inputs, *weights)
    ctx.arguments = start.shape[1], heads, scale


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    memory, inputs, *weights = ctx.saved_tensors
    start, *others = _attention_rollout_backward(grad, memory, inputs, *weights, *ctx.arguments)
    if inputs is None:
        others = [None, *others]
    return start, *others, None, None, None


torch.library.register_autograd(
    "memmodel::attention_rollout", _differentiate, setup_context=_save_for_backward, lib=_LIBRARY
)
torch.library.register_autograd(
    "memmodel::attention_rollout_backward", refuse_second_order, lib=_LIBRARY
)
