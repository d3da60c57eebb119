"""The ops of :mod:`memmodel.ops.masked` in ONNX.

Traced from PyTorch operators, the mask and the newest slot's place become some twenty nodes, a
fifth of a step at batch 1. From opset 24 on, Attention takes the rows' lengths itself.
"""

from typing import Any

import torch
from onnxscript.values import Opset

import memmodel.ops  # noqa: F401  (registers the ops)

_FIRST_ATTENTION = 24
# What ONNX Runtime's Attention takes on every device.
_ATTENTION_DTYPES = (torch.float32, torch.float16)


def translations(opset: int, dtype: torch.dtype) -> dict[Any, Any]:
    """Both ops in ONNX, for a memory of ``dtype``."""
    op = Opset("", opset)
    fused = opset >= _FIRST_ATTENTION and dtype in _ATTENTION_DTYPES
    return {
        torch.ops.memmodel.newest_slot.default: _newest_slot(op),
        torch.ops.memmodel.masked_read.default: _attention(op) if fused else _products(op),
    }


def _newest_slot(op: Any) -> Any:
    def newest_slot(memory: Any, length: Any) -> Any:
        last = op.Unsqueeze(op.Sub(length, op.Constant(value_int=1)), op.Constant(value_ints=[1]))
        return op.GatherND(memory, last, batch_dims=1)

    return newest_slot


def _attention(op: Any) -> Any:
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

    return masked_read


def _products(op: Any) -> Any:
    """The query spread over one row per head, zero outside the head's part of a slot.

    So both products take the memory as it lies; moving its heads would copy it.
    """

    def masked_read(query: Any, memory: Any, length: Any, heads: int) -> Any:
        axis = op.Constant(value_ints=[1])
        spread = op.Unsqueeze(query, axis)  # (B, 1, D)
        own = None
        if heads > 1:
            width = query.shape[1] // heads
            columns = [float(h == d // width) for h in range(heads) for d in range(width * heads)]
            flat = op.CastLike(op.Constant(value_floats=columns), memory)
            own = op.Reshape(flat, op.Constant(value_ints=[heads, width * heads]))
            spread = op.Mul(spread, own)  # (B, H, D)
        scores = op.MatMul(spread, op.Transpose(memory, perm=[0, 2, 1]))
        slots = op.Squeeze(op.Shape(memory, start=1, end=2))
        order = op.Range(op.Constant(value_int=0), slots, op.Constant(value_int=1))
        written = op.Less(order, op.Reshape(length, op.Constant(value_ints=[-1, 1, 1])))
        nothing = op.CastLike(op.Constant(value_float=float("-inf")), memory)
        read = op.MatMul(op.Softmax(op.Where(written, scores, nothing), axis=2), memory)
        if own is None:
            return op.Squeeze(read, axis)
        return op.ReduceSum(op.Mul(read, own), axis, keepdims=0)

    return masked_read
