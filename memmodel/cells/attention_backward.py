"""Backward of the attention rollout: blocks of steps, latest first, from the final memory.

Per block: all queries, weights, reads and activations are recomputed at once, since the memory is
known (teacher forcing); then the steps run in reverse and compute input gradients only; then each
parameter's gradient is one GEMM over the block. A read adds to the gradient of its head's slots the
rank-2 term ``weights ⊗ grad_read + grad_scores ⊗ query``: slots older than the block get all of the
block's terms as two GEMMs, slots inside the block gather theirs when their turn comes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from memmodel.cells.attention_forward import Weights, head_first
from memmodel.cells.attention_scratch import Scratch


class Gradients(NamedTuple):
    """Gradients of the rollout's arguments."""

    start: Tensor
    inputs: Tensor | None
    weights: Weights


def backward(
    grad: Tensor,
    memory: Tensor,
    inputs: Tensor | None,
    weights: Weights,
    *,
    first: int,
    heads: int,
    scale: float,
) -> Gradients:
    """Gradients of the rollout's arguments.

    Args:
        grad: gradient of the memory, ``(B, N, D)``.
        memory: what forward returned, ``(B, N, D)``.
        inputs: per-step inputs ``(B, N - first, I)`` or None.
        weights: the cell's parameters.
        first: k0, the number of slots that were there before the rollout.
        heads: number of heads H.
        scale: factor of the scores.
    """
    return _Backward(grad, memory, inputs, weights, first, heads, scale).run()


class _Backward:
    """One backward pass: its operands, and the gradients so far."""

    def __init__(
        self,
        grad: Tensor,
        memory: Tensor,
        inputs: Tensor | None,
        weights: Weights,
        first: int,
        heads: int,
        scale: float,
    ) -> None:
        self.memory, self.inputs, self.first, self.scale = memory, inputs, first, scale
        self.weights = w = weights.scaled(scale)
        self.slot_width, self.z_width = memory.shape[2], w.query.shape[1]
        self.keys = head_first(memory, heads)
        self.keys_t = self.keys.transpose(1, 2)
        # Each weight's columns for the newest slot, and the controller's for the read.
        self.slot_weights = (
            w.query[:, : self.slot_width].contiguous(),
            w.controller[:, : self.slot_width].contiguous(),
        )
        self.read_weight = w.controller[:, self.z_width :].contiguous()
        self.scratch = Scratch(memory, heads=heads, features=w.controller.shape[1])

        # Low precision loses small terms of long sums.
        low = memory.dtype in (torch.float16, torch.bfloat16)
        self.sums = torch.float32 if low else memory.dtype
        # Slot-first: each slot's gradient is contiguous.
        self.grad_memory = grad.new_empty(memory.shape[1], *memory.shape[::2], dtype=self.sums)
        self.grad_memory.copy_(grad.transpose(0, 1))
        self.slot_grads = (
            self.grad_memory.view(memory.shape[1], *self.keys.shape[::2]).unsqueeze(2).unbind(0)
        )
        self.grad_inputs = None if inputs is None else inputs.new_empty(inputs.shape)
        self.grad_weights = Weights(*(w.new_zeros(w.shape, dtype=self.sums) for w in weights))

    def run(self) -> Gradients:
        """All blocks, latest first."""
        steps, block = self.memory.shape[1] - self.first, self.scratch.block
        nothing = self.memory.new_zeros(self.memory.shape[0], self.slot_width)
        later = nothing, nothing
        for begin in reversed(range(0, steps, block)):
            n = min(block, steps - begin)
            weights, grad_scores = self._recompute(begin, n)
            later = self._steps_back(self.first + begin, weights, grad_scores, later)
            self._add_older_slots(self.first + begin, weights, grad_scores)
            self._add_weights(n)
            if self.grad_inputs is not None:
                self.grad_inputs[:, begin : begin + n] = self._inputs_back(n)
        _add_newest(self.grad_memory[self.first - 1], later, self.slot_weights)
        dtype = self.memory.dtype
        return Gradients(
            self.grad_memory[: self.first]
            .transpose(0, 1)
            .to(dtype)
            .clone(memory_format=torch.contiguous_format),
            self.grad_inputs,
            Weights(*(grad.to(dtype) for grad in self.grad_weights.scaled(self.scale))),
        )

    def _recompute(self, begin: int, n: int) -> tuple[Tensor, Tensor]:
        """Fill the scratch with what steps ``begin`` to ``begin + n - 1`` need.

        Returns:
            The attention weights ``(B·H, n, slots)``, and a buffer of their shape.
        """
        scratch, w, D, z_width = self.scratch, self.weights, self.slot_width, self.z_width
        oldest = self.first + begin
        slots = oldest + n
        features = scratch.features[:n]
        features[..., :D] = self.memory[:, oldest - 1 : slots - 1].transpose(0, 1)
        if self.inputs is not None:
            features[..., D:z_width] = self.inputs[:, begin : begin + n].transpose(0, 1)
        flat = features.flatten(0, 1)
        query = scratch.vectors[1, :n]
        torch.addmm(w.query_bias, flat[:, :z_width], w.query.t(), out=query.view(-1, D))

        weights, scores = scratch.coefficients(n, slots)
        torch.bmm(query.transpose(0, 1), self.keys_t[:, :, :slots], out=scores)
        scores[:, :, oldest:].masked_fill_(scratch.unwritten[:n, :n], -torch.inf)
        torch.softmax(scores, dim=2, out=weights)
        scratch.inside[:, :n, 0, :n] = weights[:, :, oldest:].transpose(1, 2)
        read = scratch.read[:n]
        read.copy_(torch.bmm(weights, self.keys[:, :slots]).transpose(0, 1))
        features[..., z_width:] = read.view(*features.shape[:2], D)

        activation, gate = scratch.activation[:n], scratch.gate[:n]
        torch.addmm(w.controller_bias, flat, w.controller.t(), out=activation.view(-1, D)).tanh_()
        torch.mul(activation, activation, out=gate).neg_().add_(1)
        return weights, scores

    def _steps_back(
        self,
        oldest: int,
        weights: Tensor,
        grad_scores: Tensor,
        later: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Input gradients of the block's steps, one after the other.

        Args:
            oldest: the block's first slot.
            weights: attention weights ``(B·H, n, slots)``.
            grad_scores: gets the gradient of the scores, ``(B·H, n, slots)``.
            later: gradients of query and tanh argument of the step after the block.

        Returns:
            The same gradients of the block's first step.
        """
        n, slots = weights.shape[1:]
        keys, keys_t = self.keys[:, :slots], self.keys_t[:, :, :slots]
        vectors = self.scratch.vectors.flatten(0, 1).transpose(0, 1)
        exact = self.sums == self.memory.dtype
        steps = zip(
            self.scratch.steps,
            self.slot_grads[oldest:],
            weights.unsqueeze(2).unbind(1),
            grad_scores.unsqueeze(2).unbind(1),
            grad_scores[:, :, oldest:].unbind(1),
            self.scratch.inside[:, :n, 1, :n].unbind(2),
            strict=False,
        )
        for step, slot_grad, step_weights, step_scores, step_inside, inside in reversed([*steps]):
            grad, grad_hidden = step.grad_slot, step.grad_hidden
            if exact:
                torch.baddbmm(slot_grad, step.slot_coefficients, vectors, out=step.grad_slot_heads)
            else:
                torch.bmm(step.slot_coefficients, vectors, out=step.grad_slot_heads).add_(slot_grad)
            _add_newest(grad, later, self.slot_weights)
            torch.mm(grad, self.weights.output, out=grad_hidden).mul_(step.gate)
            torch.addmm(grad, grad_hidden, self.read_weight, out=step.grad_read)
            # Softmax: grad_scores = weights * (grad_weights - weights · grad_weights), where the
            # inner product is that of the read and its gradient.
            grad_weights = torch.bmm(step.grad_read_heads, keys_t)
            grad_weights.sub_(torch.bmm(step.grad_read_heads, step.read))
            torch.mul(step_weights, grad_weights, out=step_scores)
            inside.copy_(step_inside)
            torch.bmm(step_scores, keys, out=step.grad_query_heads)
            later = step.grad_query, grad_hidden
        return later

    def _add_older_slots(self, oldest: int, weights: Tensor, grad_scores: Tensor) -> None:
        """Add the block's terms to the gradient of the slots before it."""
        n, rows, d = weights.shape[1], *self.keys.shape[::2]
        grad_read, query = self.scratch.vectors[:, :n].transpose(1, 2)
        older = self.grad_memory[:oldest].view(oldest, rows, d).transpose(0, 1)
        _add_product(older, weights[:, :, :oldest].transpose(1, 2), grad_read)
        _add_product(older, grad_scores[:, :, :oldest].transpose(1, 2), query)

    def _add_weights(self, n: int) -> None:
        """Add the block's terms to the gradients of the parameters."""
        scratch, grads = self.scratch, self.grad_weights
        features = scratch.features[:n].flatten(0, 1)
        for grad, weight, bias, operand in (
            (scratch.grad_query, grads.query, grads.query_bias, features[:, : self.z_width]),
            (scratch.grad_hidden, grads.controller, grads.controller_bias, features),
            (
                scratch.grad_slot,
                grads.output,
                grads.output_bias,
                scratch.activation[:n].flatten(0, 1),
            ),
        ):
            rows = grad[:n].flatten(0, 1)
            _add_product(weight, rows.t(), operand)
            bias.add_(rows.sum(0, dtype=self.sums))

    def _inputs_back(self, n: int) -> Tensor:
        """Gradient of the block's inputs, ``(B, n, I)``."""
        D, w = self.slot_width, self.weights
        grad = torch.matmul(self.scratch.grad_query[:n], w.query[:, D:])
        grad += torch.matmul(self.scratch.grad_hidden[:n], w.controller[:, D : self.z_width])
        return grad.transpose(0, 1)


def _add_newest(grad: Tensor, later: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor]) -> None:
    """Add to a slot's gradient ``(B, D)`` what it did as newest slot, to query and controller."""
    for grad_rows, weight in zip(later, weights, strict=True):
        _add_product(grad, grad_rows, weight)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a (batched) matrix product in place, to a sum of maybe higher precision."""
    if total.dtype != left.dtype:
        total.add_(torch.matmul(left, right))
    elif total.ndim == 2:
        total.addmm_(left, right)
    else:
        total.baddbmm_(left, right)
