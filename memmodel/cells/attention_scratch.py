"""Buffers of one block of backward steps, used again by every block."""

from typing import NamedTuple

import torch
from torch import Tensor

# Attention weights and their gradients are the one quantity that would be quadratic over all
# steps; a block bounds each of them by this many bytes.
_COEFFICIENT_BYTES = 2**19
_BLOCK_MIN, _BLOCK_MAX = 8, 64


class Step(NamedTuple):
    """One step's part of the buffers; making views costs as much as the smaller operations."""

    gate: Tensor  # (B, D): derivative of tanh
    read: Tensor  # (B·H, d, 1)
    grad_slot: Tensor  # (B, D)
    grad_slot_heads: Tensor  # (B·H, 1, d), the same storage, as in those below
    grad_hidden: Tensor  # (B, D): of the argument of tanh
    grad_read: Tensor  # (B, D)
    grad_read_heads: Tensor  # (B·H, 1, d)
    grad_query: Tensor  # (B, D)
    grad_query_heads: Tensor  # (B·H, 1, d)
    slot_coefficients: Tensor  # (B·H, 1, 2·block): of the terms that this step's slot gathers


class Scratch:
    """Buffers for up to ``block`` steps, step-first.

    Terms of the memory's gradient are sums over steps of coefficient times vector: ``vectors`` are
    grad_read and query of each step; ``inside`` holds the coefficients, weights and grad_scores, of
    the block's own slots. Where a step does not read a slot they are and stay zero, and so all
    buffers that meet them are finite from the start.

    Args:
        memory: ``(B, N, D)``, for sizes, dtype and device.
        heads: number of heads H.
        features: width of the controller's input.
    """

    def __init__(self, memory: Tensor, *, heads: int, features: int) -> None:
        B, N, D = memory.shape
        rows, d = B * heads, D // heads
        self.block = n = _block_length(rows * N * memory.element_size())
        self.features = memory.new_empty(n, B, features)  # [newest slot, input, read]
        self.activation = memory.new_empty(n, B, D)
        self.gate = memory.new_empty(n, B, D)
        self.read = memory.new_empty(n, rows, d)
        self.vectors = memory.new_zeros(2, n, rows, d)
        self.inside = memory.new_zeros(rows, n, 2, n)
        self.grad_slot, self.grad_hidden, self.grad_query = memory.new_empty(3, n, B, D)
        self._coefficients = memory.new_empty(2, rows * n * N)
        unwritten = torch.ones(n, n, dtype=torch.bool, device=memory.device).triu()
        self.unwritten = unwritten  # [step, slot] of the block: the step does not read the slot

        def by_head(steps: Tensor) -> tuple[Tensor, ...]:
            return steps.view(n, rows, 1, d).unbind(0)

        grad_read = self.vectors[0].view(n, B, D)
        views = (
            self.gate.unbind(0),
            self.read.unsqueeze(3).unbind(0),
            self.grad_slot.unbind(0),
            by_head(self.grad_slot),
            self.grad_hidden.unbind(0),
            grad_read.unbind(0),
            by_head(grad_read),
            self.grad_query.unbind(0),
            by_head(self.grad_query),
            self.inside.view(rows, n, 1, 2 * n).unbind(1),
        )
        self.steps = [Step(*parts) for parts in zip(*views, strict=True)]

    def coefficients(self, steps: int, slots: int) -> tuple[Tensor, Tensor]:
        """Uninitialised weights and grad_scores, ``(B·H, steps, slots)`` each."""
        rows = self.inside.shape[0]
        flat = self._coefficients[:, : rows * steps * slots]
        weights, grad_scores = flat.view(2, rows, steps, slots)
        return weights, grad_scores


def _block_length(step_bytes: int) -> int:
    return min(max(_COEFFICIENT_BYTES // max(step_bytes, 1), _BLOCK_MIN), _BLOCK_MAX)
