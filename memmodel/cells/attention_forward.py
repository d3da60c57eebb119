"""Forward of the attention rollout: plain PyTorch, any device, memory linear in the steps.

Notation: B rows, H heads of width d = D / H, n slots written so far, W = D + I the width of
z = [newest slot, input]. Scratch of several heads is head-first, ``(B·H, ·, d)``, so that batched
GEMMs never copy an operand.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Steps whose inputs are projected by one GEMM.
_INPUT_BLOCK = 64


class Weights(NamedTuple):
    """Parameters of an attention cell, named as in :class:`memmodel.AttentionCell`."""

    query: Tensor  # (D, W)
    query_bias: Tensor  # (D,)
    controller: Tensor  # (D, W + D)
    controller_bias: Tensor  # (D,)
    output: Tensor  # (D, D)
    output_bias: Tensor  # (D,)

    def scaled(self, scale: float) -> "Weights":
        """The same cell with the scores' factor moved into the query."""
        return self._replace(query=self.query * scale, query_bias=self.query_bias * scale)


def head_first(memory: Tensor, heads: int) -> Tensor:
    """``(B, N, D)`` as ``(B·H, N, d)``; the same storage if there is one head."""
    if heads == 1:
        return memory
    B, N, D = memory.shape
    return memory.view(B, N, heads, D // heads).transpose(1, 2).reshape(B * heads, N, D // heads)


def forward(
    start: Tensor, inputs: Tensor | None, weights: Weights, steps: int, heads: int, scale: float
) -> Tensor:
    """Write ``steps`` slots after ``start`` ``(B, k0, D)``; returns ``(B, k0 + steps, D)``."""
    B, k0, D = start.shape
    memory = start.new_empty(B, k0 + steps, D)
    memory[:, :k0] = start
    if steps == 0:
        return memory
    w = weights.scaled(scale)
    # Query and controller both read z: one GEMM for the two.
    z_weight = torch.cat([w.query[:, :D], w.controller[:, :D]]).t().contiguous()
    read_weight = w.controller[:, -D:].t().contiguous()
    output_weight = w.output.t().contiguous()
    keys = head_first(memory, heads)
    keys_t = keys.transpose(1, 2)
    head_slots = keys.view(B, heads, k0 + steps, D // heads).unbind(2)
    slots = memory.unbind(1)
    projected = memory.new_empty(B, 2 * D)
    query, hidden = projected.split(D, dim=1)
    activation = memory.new_empty(B, D)
    read = memory.new_empty(B, D)
    read_heads = read.view(B * heads, 1, D // heads)
    for n, bias in zip(range(k0, k0 + steps), _z_bias(inputs, w, steps), strict=True):
        torch.addmm(bias, slots[n - 1], z_weight, out=projected)
        scores = torch.bmm(query.reshape(read_heads.shape), keys_t.narrow(2, 0, n))
        torch.bmm(torch.softmax(scores, dim=2), keys.narrow(1, 0, n), out=read_heads)
        torch.addmm(hidden, read, read_weight, out=activation).tanh_()
        slot = slots[n]
        torch.add(read, w.output_bias, out=slot)
        slot.addmm_(activation, output_weight)
        if heads > 1:
            head_slots[n].copy_(slot.view(B, heads, D // heads))
    return memory


def _z_bias(inputs: Tensor | None, w: Weights, steps: int) -> Iterator[Tensor]:
    """What the biases and each step's input add to query and controller, ``(2D,)``/``(B, 2D)``."""
    bias = torch.cat([w.query_bias, w.controller_bias])
    if inputs is None:
        for _ in range(steps):
            yield bias
        return
    D = w.output_bias.shape[0]
    weight = torch.cat([w.query[:, D:], w.controller[:, D:-D]]).t()
    for block in inputs.transpose(0, 1).split(_INPUT_BLOCK):
        yield from torch.matmul(block, weight).add_(bias).unbind(0)
