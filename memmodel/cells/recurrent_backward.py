"""Backward of the recurrent rollout: through time in blocks of steps, latest first.

Per block: gates and factors of all steps are recomputed at once, since all states are known; then
the steps run in reverse and compute gradients of states and gates only; then each parameter's
gradient is one GEMM over the block.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from memmodel.cells.recurrent_forward import Layer, Rollout
from memmodel.cells.recurrent_kinds import Kind, States

_BLOCK = 64


class Gradients(NamedTuple):
    """Gradients of the start and of each layer's parameters."""

    start: Tensor
    layers: list[Layer]


def backward(
    grad: Tensor, rollout: Rollout, kind: Kind, layers: list[Layer], *, first: int
) -> Gradients:
    """Gradients from ``grad`` ``(B, first + steps, D)``, where ``first`` slots are the start."""
    return _Backward(grad, rollout, kind, layers, first).run()


class _Block(NamedTuple):
    """A layer during some steps, step-first."""

    x: Tensor  # (n, B, D): what it was fed
    before: Tensor  # (n, B, D): its state before each step
    factors: tuple[Tensor, ...]
    grad_gates: Tensor  # (n, B, G, H), filled in by the steps
    grad_hidden: Tensor  # (n, B, D), likewise: of the state after each step


class _Backward:
    """One backward pass: its operands, the gradients so far and those under way."""

    def __init__(
        self, grad: Tensor, rollout: Rollout, kind: Kind, layers: list[Layer], first: int
    ) -> None:
        self.kind, self.layers, self.first = kind, layers, first
        self.memory, self.hidden, self.cells = rollout
        self.grad_slots = grad.transpose(0, 1).contiguous()
        self.grad_start = self.grad_slots[:first].clone()
        self.grad_layers = [layer.zeros_like() for layer in layers]
        self.batch = grad.shape[0]
        self.width = layers[0].bias.shape[0] // kind.gates
        self.grad_c = [grad.new_zeros(self.batch, self.width) for _ in layers]
        self.both = layers[0].x + layers[0].h
        self.zero = grad.new_zeros(self.batch, grad.shape[2])
        # Of the step after, per layer: gradients of the gates, and of the state other than by them.
        nothing = grad.new_zeros(self.batch, layers[0].x.shape[0])
        self.next_gates = [nothing for _ in layers]
        self.next_direct: list[Tensor | None] = [None for _ in layers]

    def run(self) -> Gradients:
        """All blocks, latest first."""
        for end in range(self.hidden.shape[1], 0, -_BLOCK):
            begin = max(0, end - _BLOCK)
            blocks = [self._recompute(i, begin, end) for i in range(len(self.layers))]
            for t in range(end - 1, begin - 1, -1):
                self._step_back(blocks, t, t - begin)
            for i, block in enumerate(blocks):
                self._add_weights(i, block)
            self._add_start(blocks[0], begin)
        return Gradients(self.grad_start.transpose(0, 1).contiguous(), self.grad_layers)

    def _recompute(self, i: int, begin: int, end: int) -> _Block:
        """What a layer's steps need, from the states alone."""
        kind, layer, n = self.kind, self.layers[i], end - begin
        x = self.memory[:, begin:end].transpose(0, 1) if i == 0 else self.hidden[i - 1, begin:end]
        cells = self.cells[i] if kind.has_cell else self.cells
        states = States(
            _before(self.hidden[i], begin, end),
            self.hidden[i, begin:end],
            _before(cells, begin, end) if kind.has_cell else cells,
            cells[begin:end] if kind.has_cell else cells,
        )
        gates = x.new_empty(n, self.batch, kind.gates, self.width)
        if kind.needs_gates:
            flat = gates.view(n, self.batch, kind.gates * self.width)
            torch.matmul(x, layer.x.t(), out=flat)
            flat.add_(torch.matmul(states.before, layer.h.t())).add_(layer.bias)
        return _Block(
            x,
            states.before,
            kind.factors(gates, states),
            torch.empty_like(gates),
            torch.empty_like(states.after),
        )

    def _step_back(self, blocks: list[_Block], t: int, j: int) -> None:
        """Gradients of step t, the block's j-th, from the last layer to the first."""
        for i in range(len(blocks) - 1, -1, -1):
            block, layer = blocks[i], self.layers[i]
            grad = block.grad_hidden[j]
            self._sum_state(i, t, out=grad)
            if layer.projection is not None:
                grad = torch.mm(grad, layer.projection)
            out = block.grad_gates[j]
            factors = tuple(factor[j] for factor in block.factors)
            direct = self.kind.retreat(grad, self.grad_c[i], factors, out)
            self.next_gates[i], self.next_direct[i] = out.flatten(1), direct

    def _sum_state(self, i: int, t: int, *, out: Tensor) -> None:
        """Gradient of layer i's state after step t, from everything that used it."""
        is_slot = i == len(self.layers) - 1 and t >= self.first - 1
        total = self.grad_slots[t + 1] if is_slot else self.zero
        for grad_gates, weight in self._uses(i, t):
            torch.addmm(total, grad_gates, weight, out=out)
            total = out
        direct = self.next_direct[i]
        if direct is not None:
            out.add_(direct)

    def _uses(self, i: int, t: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Gates that read layer i's state after step t: their gradient, and the weight they used.

        The layer above has already gone back through step t, the others are still at t + 1.
        """
        last = i == len(self.layers) - 1
        fed_back = last and t + 1 >= self.first
        if not last:
            yield self.next_gates[i + 1], self.layers[i + 1].x
        if fed_back and i == 0:
            yield self.next_gates[0], self.both
            return
        yield self.next_gates[i], self.layers[i].h
        if fed_back:
            yield self.next_gates[0], self.layers[0].x

    def _add_weights(self, i: int, block: _Block) -> None:
        grads, grad_gates = self.grad_layers[i], block.grad_gates.flatten(0, 1).flatten(1)
        grads.x.addmm_(grad_gates.t(), block.x.flatten(0, 1))
        grads.h.addmm_(grad_gates.t(), block.before.flatten(0, 1))
        grads.bias.add_(grad_gates.sum(0))
        if grads.projection is not None:
            grad_hidden = block.grad_hidden.flatten(0, 1)
            grads.projection.addmm_(grad_hidden.t(), block.factors[-1].flatten(0, 1))

    def _add_start(self, block: _Block, begin: int) -> None:
        """Start slots get a gradient from the steps that were fed them."""
        n = min(self.first - begin, len(block.x))
        if n > 0:
            grad_gates = block.grad_gates[:n].flatten(2)
            self.grad_start[begin : begin + n] += torch.matmul(grad_gates, self.layers[0].x)


def _before(states: Tensor, begin: int, end: int) -> Tensor:
    """States before steps ``begin`` to ``end - 1``, given those after each; zero at first."""
    if begin:
        return states[begin - 1 : end - 1]
    return torch.cat([torch.zeros_like(states[:1]), states[: end - 1]])
