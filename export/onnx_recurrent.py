"""``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` as ONNX operators."""

from collections.abc import Sequence
from typing import Any

from onnxscript.values import Opset

from memmodel.export.errors import ExportError

# Function of torch._VF: ONNX operator, activation.
_OPERATORS = {
    "rnn_tanh": ("RNN", "Tanh"),
    "rnn_relu": ("RNN", "Relu"),
    "gru": ("GRU", None),
    "lstm": ("LSTM", None),
}
# Order of the gates: torch has r, z, n and i, f, g, o; ONNX z, r, h and i, o, f, c.
_GATES = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}


def translation(opset: int) -> Any:
    """``memmodel_export::recurrent`` in ONNX: one RNN, GRU or LSTM node per layer."""
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
        operator, activation = _OPERATORS[kind]
        if h.shape[2] != c.shape[2]:
            raise ExportError("ONNX has no LSTM with proj_size")
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
