"""Backward of the attention rollout: blocks of steps, latest first, from the final memory.

Per block: all queries, weights, reads and activations are recomputed at once, since the memory is
known (teacher forcing); then the steps run in reverse and compute input gradients only; then each
parameter's gradient is one GEMM over the block. A read adds to the gradient of its head's slots the
rank-2 term ``weights ⊗ grad_read + grad_scores ⊗ query``: older slots get a block of them as one
GEMM, slots inside the block read the terms that wait for them when their turn comes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from memmodel.cells.attention_forward import Weights, head_first

# Attention weights and their gradients, (B·H, block, 2, N), are the one quantity that would be
# quadratic over all steps: a block bounds it.
_BLOCK_BYTES = 2 * 2**20
_BLOCK_MIN, _BLOCK_MAX = 8, 64


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


class _Block(NamedTuple):
    """n steps, recomputed: step-first unless said otherwise."""

    begin: int  # first step
    features: Tensor  # (n, B, W + D): [z, read]
    activation: Tensor  # (n, B, D)
    gate: Tensor  # (n, B, D): derivative of tanh
    read: Tensor  # (n, B·H, d)
    # Factors of the memory's gradient: a step's vectors are [grad_read, query], its coefficients
    # [weights, grad_scores] over all slots that the block reads.
    vectors: Tensor  # (n, 2, B·H, d)
    coefficients: Tensor  # (B·H, n, 2, top)
    inside: Tensor  # (B·H, n - 1, n, 2): coefficients of the block's own slots, slot-first
    # Filled in by the steps: gradients of slot, query and the controller's tanh argument.
    grad_slot: Tensor  # (n, B, D)
    grad_query: Tensor  # (n, B, D)
    grad_hidden: Tensor  # (n, B, D)


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
        D = memory.shape[2]
        self.memory, self.inputs, self.first, self.heads, self.scale = (
            memory, inputs, first, heads, scale,
        )  # fmt: skip
        self.weights = w = weights.scaled(scale)
        self.z_width = w.query.shape[1]
        self.keys = head_first(memory, heads)
        self.keys_t = self.keys.transpose(1, 2)
        # Slot-first: each slot's gradient is contiguous.
        self.grad_memory = grad.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        self.grad_inputs = None if inputs is None else inputs.new_empty(inputs.shape)
        self.grad_weights = Weights(*(torch.zeros_like(weight) for weight in weights))
        self.query_slot = w.query[:, :D].contiguous()
        self.hidden_slot = w.controller[:, :D].contiguous()
        self.hidden_read = w.controller[:, self.z_width :].contiguous()
        self.block = self._block_length()
        ones = torch.ones(self.block, self.block, dtype=torch.bool, device=memory.device)
        self.unwritten = ones.triu()  # [step, slot] of a block: the slot is not yet there

    def _block_length(self) -> int:
        B, N, _ = self.memory.shape
        step = max(1, 2 * B * self.heads * N * self.memory.element_size())
        return min(max(_BLOCK_BYTES // step, _BLOCK_MIN), _BLOCK_MAX)

    def run(self) -> Gradients:
        """All blocks, latest first."""
        carry: tuple[Tensor, Tensor] | None = None
        for end in range(self.memory.shape[1] - self.first, 0, -self.block):
            block = self._recompute(max(0, end - self.block), end)
            carry = self._steps_back(block, carry)
            self._add_older_slots(block)
            self._add_weights(block)
            if self.grad_inputs is not None:
                self.grad_inputs[:, block.begin : end] = self._grad_inputs(block)
        if carry is not None:
            self._add_newest(self.grad_memory[self.first - 1], carry)
        return Gradients(
            self.grad_memory[: self.first].transpose(0, 1).contiguous(),
            self.grad_inputs,
            self.grad_weights.scaled(self.scale),
        )

    def _recompute(self, begin: int, end: int) -> _Block:
        """Everything the steps need, from the memory alone."""
        n, heads, w, z_width = end - begin, self.heads, self.weights, self.z_width
        B, _, D = self.memory.shape
        rows, d, oldest, top = B * heads, D // heads, self.first + begin, self.first + end - 1
        features = self.memory.new_empty(n, B, z_width + D)
        features[..., :D] = self.memory[:, oldest - 1 : top].transpose(0, 1)
        if self.inputs is not None:
            features[..., D:z_width] = self.inputs[:, begin:end].transpose(0, 1)
        vectors = self.memory.new_empty(n, 2, rows, d)
        flat = features.view(n * B, z_width + D)
        query = torch.addmm(w.query_bias, flat[:, :z_width], w.query.t())
        vectors[:, 1] = query.view(n, rows, d)

        scores = torch.bmm(vectors[:, 1].transpose(0, 1), self.keys_t[:, :, :top])
        scores[:, :, oldest:].masked_fill_(self.unwritten[:n, : n - 1], -torch.inf)
        weights = torch.softmax(scores, dim=2)  # (B·H, n, top)
        read = torch.bmm(weights, self.keys[:, :top]).transpose(0, 1).contiguous()
        features[..., z_width:] = read.view(n, B, D)
        coefficients = weights.new_empty(rows, n, 2, top)
        coefficients[:, :, 0] = weights
        inside = weights.new_empty(rows, n - 1, n, 2)
        inside[..., 0] = weights[:, :, oldest:].transpose(1, 2)

        activation = torch.addmm(w.controller_bias, flat, w.controller.t()).tanh_()
        filled_by_steps = (features.new_empty(n, B, D) for _ in range(3))
        return _Block(
            begin,
            features,
            activation.view(n, B, D),
            (1 - activation.square()).view(n, B, D),
            read,
            vectors,
            coefficients,
            inside,
            *filled_by_steps,
        )

    def _add_newest(self, grad: Tensor, carry: tuple[Tensor, Tensor]) -> None:
        """Add to a slot's ``grad`` what the step that had it as newest slot sends back."""
        grad_query, grad_hidden = carry
        grad.addmm_(grad_query, self.query_slot).addmm_(grad_hidden, self.hidden_slot)

    def _steps_back(
        self, block: _Block, carry: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Input gradients of the block's steps, one after the other."""
        n, _, rows, d = block.vectors.shape
        top = block.coefficients.shape[3]
        oldest = top - n + 1
        heads_shape = (rows, 1, d)
        keys, keys_t = self.keys[:, :top], self.keys_t[:, :, :top]
        vectors = block.vectors.view(2 * n, rows, d).transpose(0, 1)
        inside = block.inside.view(rows, n - 1, 2 * n)
        output_weight = self.weights.output
        for i in reversed(range(n)):
            slot = self.first + block.begin + i
            grad = block.grad_slot[i]
            waiting = 2 * (i + 1)
            if i < n - 1:
                torch.baddbmm(
                    self.grad_memory[slot].view(heads_shape),
                    inside[:, i : i + 1, waiting:],
                    vectors[:, waiting:],
                    out=grad.view(heads_shape),
                )
            else:
                grad.copy_(self.grad_memory[slot])
            if carry is not None:
                self._add_newest(grad, carry)
            grad_hidden = torch.mm(grad, output_weight, out=block.grad_hidden[i])
            grad_hidden.mul_(block.gate[i])
            grad_read = block.vectors[i, 0]
            torch.addmm(grad, grad_hidden, self.hidden_read, out=grad_read.view(grad.shape))
            grad_read = grad_read.view(heads_shape)

            # Softmax: grad_scores = weights * (grad_weights - weights · grad_weights), where the
            # inner product is that of the read and its gradient.
            grad_weights = torch.bmm(grad_read, keys_t)
            grad_weights -= torch.bmm(grad_read, block.read[i].unsqueeze(2))
            weights, grad_scores = block.coefficients[:, i].split(1, dim=1)
            torch.mul(weights, grad_weights, out=grad_scores)
            block.inside[:, :, i, 1] = grad_scores[:, 0, oldest:]
            grad_query = block.grad_query[i]
            torch.bmm(grad_scores, keys, out=grad_query.view(heads_shape))
            carry = grad_query, grad_hidden
        assert carry is not None
        return carry

    def _add_older_slots(self, block: _Block) -> None:
        n, _, rows, d = block.vectors.shape
        oldest = block.coefficients.shape[3] - n + 1
        older = self.grad_memory[:oldest].view(oldest, rows, d).transpose(0, 1)
        coefficients = block.coefficients.flatten(1, 2)[:, :, :oldest]
        vectors = block.vectors.view(2 * n, rows, d).transpose(0, 1)
        older.baddbmm_(coefficients.transpose(1, 2), vectors)

    def _add_weights(self, block: _Block) -> None:
        grads = self.grad_weights
        features, activation = block.features.flatten(0, 1), block.activation.flatten(0, 1)
        grad_query, grad_hidden = block.grad_query.flatten(0, 1), block.grad_hidden.flatten(0, 1)
        grad_slot = block.grad_slot.flatten(0, 1)
        grads.query.addmm_(grad_query.t(), features[:, : self.z_width])
        grads.controller.addmm_(grad_hidden.t(), features)
        grads.output.addmm_(grad_slot.t(), activation)
        grads.query_bias.add_(grad_query.sum(0))
        grads.controller_bias.add_(grad_hidden.sum(0))
        grads.output_bias.add_(grad_slot.sum(0))

    def _grad_inputs(self, block: _Block) -> Tensor:
        """Gradient of the block's inputs, ``(B, n, I)``."""
        D = self.memory.shape[2]
        grad = torch.matmul(block.grad_query, self.weights.query[:, D:])
        grad += torch.matmul(block.grad_hidden, self.weights.controller[:, D : self.z_width])
        return grad.transpose(0, 1)
