"""Keep ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` whole while a module is traced.

torch.export unrolls an ``nn.RNN`` over a sequence, which fixes its length, and torch.onnx turns a
GRU or LSTM into a loop that copies its output at every step. Here each call becomes one node, which
stands for the ONNX operator of the same kind.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from onnxscript.values import Opset
from torch import Tensor

from memmodel.export.errors import ExportError

# Functions of torch._VF that the modules call: ONNX operator, activation.
_KINDS = {
    "rnn_tanh": ("RNN", "Tanh"),
    "rnn_relu": ("RNN", "Relu"),
    "gru": ("GRU", None),
    "lstm": ("LSTM", None),
}
# Order of the gates: torch has r, z, n and i, f, g, o; ONNX z, r, h and i, o, f, c.
_GATES = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}

_LIBRARY = torch.library.Library("memmodel_export", "FRAGMENT")
_LIBRARY.define(
    "recurrent(Tensor input, Tensor h, Tensor c, Tensor[] weights, str kind, bool biases, "
    "int layers, bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)"
)


@torch.library.register_fake("memmodel_export::recurrent", lib=_LIBRARY)
def _(
    input: Tensor,
    h: Tensor,
    c: Tensor,
    weights: Sequence[Tensor],
    kind: str,
    biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    width = h.shape[2] * (2 if bidirectional else 1)
    output = input.new_empty(*input.shape[:2], width)
    return output, h.new_empty(h.shape), c.new_empty(c.shape)


@contextmanager
def whole_recurrent_calls() -> Iterator[None]:
    """Within the block, recurrent modules call one op each."""
    functions = torch._VF
    try:
        for kind in _KINDS:
            setattr(functions, kind, _traced(kind, getattr(functions, kind)))
        yield
    finally:
        for kind in _KINDS:
            functions.__dict__.pop(kind, None)


def _traced(kind: str, original: Any) -> Any:
    def call(input: Tensor, hx: Any, *rest: Any) -> Any:
        if not isinstance(rest[0], list | tuple):
            return original(input, hx, *rest)  # a packed sequence
        weights, biases, layers, _, _, bidirectional, batch_first = rest
        h, c = hx if kind == "lstm" else (hx, hx)
        if h.shape[2] != c.shape[2]:
            raise ExportError("ONNX has no LSTM with proj_size")
        output, *state = torch.ops.memmodel_export.recurrent(
            input, h, c, list(weights), kind, biases, layers, bidirectional, batch_first
        )
        return (output, *state) if kind == "lstm" else (output, state[0])

    return call


def translation(opset: int) -> Any:
    """The op in ONNX: one RNN, GRU or LSTM node per layer."""
    op = Opset("", opset)

    def recurrent(
        input: Any,
        h: Any,
        c: Any,
        weights: Sequence[Any],
        kind: str,
        biases: bool,
        layers: int,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Any, Any, Any]:
        operator, activation = _KINDS[kind]
        directions = 2 if bidirectional else 1
        options: dict[str, Any] = {"hidden_size": h.shape[2]}
        if bidirectional:
            options["direction"] = "bidirectional"
        if activation is not None:
            options["activations"] = [activation] * directions
        if operator == "GRU":
            options["linear_before_reset"] = 1  # as torch has it
        states: list[tuple[Any, ...]] = []
        value = op.Transpose(input, perm=[1, 0, 2]) if batch_first else input
        per_layer = directions * (4 if biases else 2)
        for layer in range(layers):
            own = weights[layer * per_layer : (layer + 1) * per_layer]
            first = [
                op.Slice(state, [layer * directions], [(layer + 1) * directions], [0])
                for state in ((h, c) if operator == "LSTM" else (h,))
            ]
            packed = _pack(op, own, operator, biases, directions, h.shape[2])
            value, *last = getattr(op, operator)(value, *packed, None, *first, **options)
            # (k, directions, B, H) -> (k, B, directions * H)
            value = op.Reshape(op.Transpose(value, perm=[0, 2, 1, 3]), [0, 0, -1])
            states.append(tuple(last))
        if batch_first:
            value = op.Transpose(value, perm=[1, 0, 2])
        final = [op.Concat(*parts, axis=0) for parts in zip(*states, strict=True)]
        return value, final[0], final[-1]

    return recurrent


def _pack(
    op: Any, weights: Sequence[Any], operator: str, biases: bool, directions: int, width: int
) -> tuple[Any, Any, Any]:
    """Weights of one layer as ONNX wants them: W, R and B, with a dimension for the directions."""
    each = len(weights) // directions
    parts = [weights[i * each : (i + 1) * each] for i in range(directions)]
    rows = [gate * width + row for gate in _GATES[operator] for row in range(width)]

    def gates(weight: Any) -> Any:
        return weight if operator == "RNN" else op.Gather(weight, rows, axis=0)

    def stack(values: list[Any]) -> Any:
        return op.Concat(*(op.Unsqueeze(value, [0]) for value in values), axis=0)

    w, r = (stack([gates(part[i]) for part in parts]) for i in (0, 1))
    if not biases:
        return w, r, None
    return w, r, stack([op.Concat(gates(p[2]), gates(p[3]), axis=0) for p in parts])
