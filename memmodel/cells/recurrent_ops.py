"""The recurrent rollout as a registered op: what the dispatcher and autograd need to know."""

from typing import Any

import torch
from torch import Tensor

from memmodel._rollout.eager import refuse_second_order
from memmodel.cells import recurrent_backward, recurrent_forward
from memmodel.cells.fast import in_own_dtype
from memmodel.cells.recurrent_forward import Rollout, layers_from, weights_from
from memmodel.cells.recurrent_kinds import kind_named

_LIBRARY = torch.library.Library("memmodel", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_RNN = "Tensor[] weights, str mode, int layers, bool bias"
_LIBRARY.define(
    f"recurrent_rollout(Tensor start, {_RNN}, SymInt steps) -> (Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
_LIBRARY.define(
    "recurrent_rollout_backward(Tensor grad, Tensor memory, Tensor hidden, Tensor cells, "
    f"{_RNN}, SymInt first) -> Tensor[]",
    tags=_TAGS,
)

_recurrent_rollout = torch.ops.memmodel.recurrent_rollout.default
_recurrent_rollout_backward = torch.ops.memmodel.recurrent_rollout_backward.default


@in_own_dtype
def _forward(
    start: Tensor, weights: list[Tensor], mode: str, layers: int, bias: bool, steps: int
) -> Rollout:
    kind = kind_named(mode)
    parameters = layers_from(kind, weights, layers=layers, bias=bias)
    return recurrent_forward.forward(start, kind, parameters, steps)


@in_own_dtype
def _backward(
    grad: Tensor,
    memory: Tensor,
    hidden: Tensor,
    cells: Tensor,
    weights: list[Tensor],
    mode: str,
    layers: int,
    bias: bool,
    first: int,
) -> list[Tensor]:
    kind = kind_named(mode)
    parameters = layers_from(kind, weights, layers=layers, bias=bias)
    rollout = Rollout(memory, hidden, cells)
    grads = recurrent_backward.backward(grad, rollout, kind, parameters, first=first)
    return [grads.start, *weights_from(kind, grads.layers, bias=bias)]


_LIBRARY.impl("recurrent_rollout", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("recurrent_rollout_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("memmodel::recurrent_rollout", lib=_LIBRARY)
def _(
    start: Tensor, weights: list[Tensor], mode: str, layers: int, bias: bool, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, k0, width = start.shape
    kind = kind_named(mode)
    fed = k0 + steps - 1
    hidden_size = weights[1].shape[0] // kind.parameter_gates
    return (
        start.new_empty(batch, k0 + steps, width),
        start.new_empty(layers, fed, batch, width),
        start.new_empty(layers if kind.has_cell else 0, fed, batch, hidden_size),
    )


@torch.library.register_fake("memmodel::recurrent_rollout_backward", lib=_LIBRARY)
def _(
    grad: Tensor,
    memory: Tensor,
    hidden: Tensor,
    cells: Tensor,
    weights: list[Tensor],
    mode: str,
    layers: int,
    bias: bool,
    first: int,
) -> list[Tensor]:
    start = memory.new_empty(memory.shape[0], first, memory.shape[2])
    return [start, *(weight.new_empty(weight.shape) for weight in weights)]


def _save_for_backward(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    start, weights, *arguments, _ = inputs
    memory, hidden, cells = output
    ctx.mark_non_differentiable(hidden, cells)
    ctx.save_for_backward(memory, hidden, cells, *weights)
    ctx.arguments = *arguments, start.shape[1]


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    memory, hidden, cells, *weights = ctx.saved_tensors
    start, *others = _recurrent_rollout_backward(
        grad, memory, hidden, cells, weights, *ctx.arguments
    )
    return start, others, None, None, None, None


torch.library.register_autograd(
    "memmodel::recurrent_rollout", _differentiate, setup_context=_save_for_backward, lib=_LIBRARY
)
torch.library.register_autograd(
    "memmodel::recurrent_rollout_backward", refuse_second_order, lib=_LIBRARY
)


def recurrent_rollout(
    start: Tensor, weights: list[Tensor], *, mode: str, layers: int, bias: bool, steps: int
) -> Tensor:
    """The memory ``(B, k0 + steps, D)`` from ``nn.RNNBase``'s parameters, layer by layer."""
    return _recurrent_rollout(start, weights, mode, layers, bias, steps)[0]
