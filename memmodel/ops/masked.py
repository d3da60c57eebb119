"""Reads of a memory that is not filled to its end, for cells with a ``masked`` method.

Ops rather than functions, so that exporters may turn each into the operator that a runtime has for
it: ONNX's Attention takes the rows' lengths itself and copies nothing.
"""

from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("memmodel", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define("newest_slot(Tensor memory, Tensor length) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    "masked_read(Tensor query, Tensor memory, Tensor length, int heads) -> Tensor", tags=_TAGS
)


def newest_slot(memory: Tensor, length: Tensor) -> Tensor:
    """The newest slot of each row.

    Args:
        memory: ``(B, N, *slot)``.
        length: number of written slots per row, ``(B,)`` int64, each in 1..N.

    Returns:
        ``(B, *slot)``.
    """
    return torch.ops.memmodel.newest_slot(memory, length)


def masked_read(query: Tensor, memory: Tensor, length: Tensor, *, heads: int = 1) -> Tensor:
    """Dot-product attention over the written slots, which are keys and values.

    Vaswani et al. 2017, eq. 1, with one query per row.

    Args:
        query: one query per row, scaled by the caller, ``(B, D)``; floating point.
        memory: ``(B, N, D)``; what lies past a row's length does not matter, NaN included.
        length: number of written slots per row, ``(B,)`` int64, each in 1..N.
        heads: number of heads; divides D. Each reads its own D / heads columns of every slot.

    Returns:
        What each row read, ``(B, D)``.

    Raises:
        ValueError: a shape breaks one of the rules above.
    """
    if query.ndim != 2 or memory.ndim != 3 or query.shape != (memory.shape[0], memory.shape[2]):
        raise ValueError(
            "query must be (B, D) to read a memory (B, N, D), "
            f"got {tuple(query.shape)} and {tuple(memory.shape)}"
        )
    if heads < 1 or query.shape[1] % heads:
        raise ValueError(f"heads must divide the slots' width {query.shape[1]}, got {heads}")
    return torch.ops.memmodel.masked_read(query, memory, length, heads)


def _newest(memory: Tensor, length: Tensor) -> Tensor:
    return memory[torch.arange(len(memory), device=memory.device), length - 1]


def _attend(
    query: Tensor, memory: Tensor, length: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries ``(B, H, 1, d)``, written slots ``(B, H, N, d)`` and weights ``(B, H, 1, N)``."""
    written = torch.arange(memory.shape[1], device=memory.device) < length[:, None]
    # Zeros in place of what is not written: a weight of zero does not hide a NaN.
    slots = torch.where(written[:, :, None], memory, 0).unflatten(2, (heads, -1)).transpose(1, 2)
    queries = query.unflatten(1, (heads, 1, -1))
    scores = (queries @ slots.mT).masked_fill(~written[:, None, None], -torch.inf)
    return queries, slots, torch.softmax(scores, dim=-1)


def _read(query: Tensor, memory: Tensor, length: Tensor, heads: int) -> Tensor:
    _, slots, weights = _attend(query, memory, length, heads)
    return (weights @ slots).flatten(1)


_LIBRARY.impl("newest_slot", _newest, "CompositeExplicitAutograd")
_LIBRARY.impl("masked_read", _read, "CompositeExplicitAutograd")


@torch.library.register_fake("memmodel::newest_slot", lib=_LIBRARY)
def _(memory: Tensor, length: Tensor) -> Tensor:
    return memory.new_empty(memory.shape[0], *memory.shape[2:])


@torch.library.register_fake("memmodel::masked_read", lib=_LIBRARY)
def _(query: Tensor, memory: Tensor, length: Tensor, heads: int) -> Tensor:
    return memory.new_empty(query.shape)


def _save_newest(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    memory, length = inputs
    ctx.slots = memory.shape[1]
    ctx.save_for_backward(length)


def _newest_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (length,) = ctx.saved_tensors
    newest = torch.arange(ctx.slots, device=grad.device) == length[:, None] - 1
    newest = newest.view(*newest.shape, *(1 for _ in grad.shape[1:]))
    return torch.where(newest, grad.unsqueeze(1), 0), None


def _save_read(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
    query, memory, length, ctx.heads = inputs
    ctx.save_for_backward(query, memory, length)


def _read_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    query, memory, length = ctx.saved_tensors
    queries, slots, weights = _attend(query, memory, length, ctx.heads)
    grads = grad.unflatten(1, (ctx.heads, 1, -1))
    grad_weights = grads @ slots.mT
    grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True))
    # Rank two per row and head: what the slots gave as values and as keys.
    grad_slots = weights.mT @ grads + grad_scores.mT @ queries
    return (grad_scores @ slots).flatten(1), grad_slots.transpose(1, 2).flatten(2), None, None


torch.library.register_autograd(
    "memmodel::newest_slot", _newest_backward, setup_context=_save_newest, lib=_LIBRARY
)
torch.library.register_autograd(
    "memmodel::masked_read", _read_backward, setup_context=_save_read, lib=_LIBRARY
)
