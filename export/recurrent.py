"""Keep ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` whole while a module is traced.

torch.export unrolls an ``nn.RNN`` over a sequence, which fixes its length, and torch.onnx turns a
GRU or LSTM into a loop that copies its output at every step. Here each call becomes one node, which
later turns into the ONNX operator or the aten op of the same kind.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_KINDS = ("rnn_tanh", "rnn_relu", "gru", "lstm")  # functions of torch._VF

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
        output, *state = torch.ops.memmodel_export.recurrent(
            input, h, c, list(weights), kind, biases, layers, bidirectional, batch_first
        )
        return (output, *state) if kind == "lstm" else (output, state[0])

    return call


def use_aten(graphs: torch.fx.GraphModule) -> None:
    """Turn the nodes into calls of ``aten::rnn_tanh`` and so on, in all nested graphs."""
    for module in graphs.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.target is torch.ops.memmodel_export.recurrent.default:
                    _to_aten(node)
            module.recompile()


def _to_aten(node: torch.fx.Node) -> None:
    input, h, c, weights, kind, biases, layers, bidirectional, batch_first = node.args
    lstm = kind == "lstm"
    state = [h, c] if lstm else h
    dropout, train = 0.0, False
    options = (biases, layers, dropout, train, bidirectional, batch_first)
    node.target = getattr(torch.ops.aten, str(kind)).input
    node.args = (input, state, weights, *options)
    if not lstm:
        node.meta["val"] = node.meta["val"][:2]
