"""Forward of the recurrent rollout: the state is kept, so a step costs the same at any length.

A step feeds one slot, of the start or made by the step before, and yields an output; the outputs
from the last start slot on are the new slots. T = k0 + steps - 1 slots are fed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from memmodel.cells.recurrent_kinds import Kind


class Layer(NamedTuple):
    """Parameters of a layer, rows ordered as the kind's gates."""

    x: Tensor  # (G·H, I)
    h: Tensor  # (G·H, P)
    bias: Tensor  # (G·H,)
    projection: Tensor | None  # (P, H)

    def zeros_like(self) -> "Layer":
        """Zeros to add this layer's gradients to."""
        x, h, bias = (weight.new_zeros(weight.shape) for weight in (self.x, self.h, self.bias))
        projection = self.projection
        if projection is not None:
            projection = projection.new_zeros(projection.shape)
        return Layer(x, h, bias, projection)


class Rollout(NamedTuple):
    """The memory and all states, step-first."""

    memory: Tensor  # (B, k0 + steps, D)
    hidden: Tensor  # (layers, T, B, P)
    cells: Tensor  # (layers, T, B, H); LSTM only, else (0, T, B, H)


def layers_from(kind: Kind, weights: list[Tensor], *, layers: int, bias: bool) -> list[Layer]:
    """Layers from the parameters in the order of ``nn.RNNBase``."""
    size = len(weights) // layers
    return [_layer(kind, weights[i : i + size], bias) for i in range(0, len(weights), size)]


def _layer(kind: Kind, weights: list[Tensor], bias: bool) -> Layer:
    projection = weights[-1] if len(weights) % 2 else None
    x, h = kind.arrange(*weights[:2])
    if not bias:
        return Layer(x, h, x.new_zeros(len(x)), projection)
    x_bias, h_bias = kind.arrange(*weights[2:4])
    return Layer(x, h, x_bias + h_bias, projection)


def weights_from(kind: Kind, layers: list[Layer], *, bias: bool) -> list[Tensor]:
    """Gradients of layers as gradients of the parameters; undoes :func:`layers_from`."""
    weights: list[Tensor] = []
    for layer in layers:
        weights += kind.restore(layer.x, layer.h)
        if bias:
            weights += kind.restore(layer.bias.clone(), layer.bias)
        if layer.projection is not None:
            weights.append(layer.projection)
    return weights


def forward(start: Tensor, kind: Kind, layers: list[Layer], steps: int) -> Rollout:
    """Write ``steps`` slots after ``start`` ``(B, k0, D)``."""
    B, k0, D = start.shape
    fed = k0 + steps - 1
    width = layers[0].x.shape[0] // kind.gates
    hidden = start.new_empty(len(layers), fed, B, D)
    cells = start.new_empty(len(layers) if kind.has_cell else 0, fed, B, width)
    memory = start.new_empty(B, k0 + steps, D)
    memory[:, :k0] = start
    _advance(start, kind, layers, hidden, cells)
    memory[:, k0:] = hidden[-1, k0 - 1 :].transpose(0, 1)
    return Rollout(memory, hidden, cells)


def _advance(start: Tensor, kind: Kind, layers: list[Layer], hidden: Tensor, cells: Tensor) -> None:
    B, k0, D = start.shape
    width = layers[0].x.shape[0] // kind.gates
    x_weights = [layer.x.t().contiguous() for layer in layers]
    h_weights = [layer.h.t().contiguous() for layer in layers]
    alone = len(layers) == 1
    # A single layer is fed its own state, so the two linear maps are one.
    both_weight = x_weights[0] + h_weights[0] if alone else x_weights[0]
    gates = start.new_empty(B, layers[0].x.shape[0])
    unprojected = start.new_empty(B, width)
    h = [start.new_zeros(B, D) for _ in layers]
    c = [start.new_zeros(B, width) for _ in layers]
    steps = zip(*(states.unbind(0) for states in hidden), strict=True)
    from_start = torch.matmul(start.transpose(0, 1), x_weights[0]).add_(layers[0].bias)
    for t, new_h in enumerate(steps):
        for i, layer in enumerate(layers):
            if i == 0 and t < k0:
                torch.addmm(from_start[t], h[0], h_weights[0], out=gates)
            elif alone:
                torch.addmm(layer.bias, h[0], both_weight, out=gates)
            else:
                # h[-1] is still the last layer's output of the step before, h[i - 1] is new.
                torch.addmm(layer.bias, h[i - 1], x_weights[i], out=gates)
                gates.addmm_(h[i], h_weights[i])
            new_c = cells[i, t] if kind.has_cell else c[i]
            if layer.projection is None:
                kind.advance(gates, h[i], new_h[i], c[i], new_c)
            else:
                kind.advance(gates, h[i], unprojected, c[i], new_c)
                torch.mm(unprojected, layer.projection.t(), out=new_h[i])
            h[i], c[i] = new_h[i], new_c
