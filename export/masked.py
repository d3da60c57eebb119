"""The masked read of a buffer as one ONNX operator.

Traced from PyTorch operators, the mask and the newest slot's place become some twenty nodes, a
fifth of a step at batch 1. From opset 24 on, Attention takes the rows' lengths itself.
"""

from typing import Any

import torch
from onnxscript.values import Opset
from torch import Tensor

FIRST_OPSET = 24
# What ONNX Runtime's operator takes on every device.
DTYPES = (torch.float32, torch.float16)

_LIBRARY = torch.library.Library("memmodel_export", "FRAGMENT")
_LIBRARY.define("newest(Tensor memory, Tensor length) -> Tensor")
_LIBRARY.define("masked_read(Tensor query, Tensor memory, Tensor length, int heads) -> Tensor")


@torch.library.register_fake("memmodel_export::newest", lib=_LIBRARY)
def _(memory: Tensor, length: Tensor) -> Tensor:
    return memory.new_empty(memory.shape[0], memory.shape[2])


@torch.library.register_fake("memmodel_export::masked_read", lib=_LIBRARY)
def _(query: Tensor, memory: Tensor, length: Tensor, heads: int) -> Tensor:
    return query.new_empty(query.shape)


def newest(memory: Tensor, length: Tensor) -> Tensor:
    """The newest slot of each row, ``(B, D)``, of ``memory (B, N, D)`` and ``length (B)``."""
    return torch.ops.memmodel_export.newest(memory, length)


def masked_read(query: Tensor, memory: Tensor, length: Tensor, heads: int) -> Tensor:
    """What scaled queries ``(B, D)`` read from the first ``length`` slots, ``(B, D)``."""
    return torch.ops.memmodel_export.masked_read(query, memory, length, heads)


def translations(opset: int) -> dict[Any, Any]:
    """Both ops in ONNX."""
    op = Opset("", opset)

    def newest(memory: Any, length: Any) -> Any:
        last = op.Unsqueeze(op.Sub(length, op.Constant(value_int=1)), op.Constant(value_ints=[1]))
        return op.GatherND(memory, last, batch_dims=1)

    def masked_read(query: Any, memory: Any, length: Any, heads: int) -> Any:
        axis = op.Constant(value_ints=[1])
        read = op.Attention(
            op.Unsqueeze(query, axis),
            memory,
            memory,
            None,
            None,
            None,
            length,
            q_num_heads=heads,
            kv_num_heads=heads,
            scale=1.0,  # with any other, ONNX Runtime scales a copy of the memory at each step
        )
        # Several outputs exist; the first is the read.
        read = read[0] if isinstance(read, tuple | list) else read
        return op.Squeeze(read, axis)

    return {
        torch.ops.memmodel_export.newest.default: newest,
        torch.ops.memmodel_export.masked_read.default: masked_read,
    }
