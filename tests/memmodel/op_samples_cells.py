"""Samples of the cells' rollout ops."""

from collections.abc import Iterator
from typing import Any

import torch
from op_samples import Sample, random, register

import memmodel.cells  # noqa: F401  (registers the ops)


def _attention_arguments(
    device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    B, D, steps = 2, 4, 3
    for name, heads, width, k0 in (
        ("no inputs", 1, None, 1),
        ("inputs", 1, 3, 2),
        ("two heads", 2, None, 3),
        ("two heads, inputs", 2, 1, 1),
    ):
        z = D + (width or 0)
        start = random(B, k0, D, device=device, dtype=dtype)
        inputs = None if width is None else random(B, steps, width, device=device, dtype=dtype)
        shapes = ((D, z), (D,), (D, z + D), (D,), (D, D), (D,))
        weights = (random(*shape, device=device, dtype=dtype) / 2 for shape in shapes)
        yield name, (start, inputs, *weights, steps, heads, (heads / D) ** 0.5)


@register("memmodel::attention_rollout")
def _attention(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype.is_complex:
        return
    for name, args in _attention_arguments(device, dtype):
        tensors = tuple(i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor))
        yield Sample(name, args, differentiable=tensors, twice=False)


@register("memmodel::attention_rollout_backward")
def _attention_backward(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype.is_complex:
        return
    for name, args in _attention_arguments(device, dtype):
        start, inputs, *weights, _steps, heads, scale = args
        memory = torch.ops.memmodel.attention_rollout(*args)
        first = start.shape[1]
        grad = torch.randn_like(memory)
        yield Sample(name, (grad, memory, inputs, *weights, first, heads, scale))


def _recurrent_arguments(
    device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    B, D, steps = 2, 3, 3
    for mode, layers, bias, k0, hidden in (
        ("RNN_TANH", 1, True, 1, D),
        ("RNN_RELU", 2, False, 2, D),
        ("GRU", 1, False, 3, D),
        ("GRU", 2, True, 1, D),
        ("LSTM", 1, True, 2, D),
        ("LSTM", 2, True, 1, 4),
    ):
        gates = {"GRU": 3, "LSTM": 4}.get(mode, 1)
        layer = [(gates * hidden, D), (gates * hidden, D)]
        layer += [(gates * hidden,)] * 2 if bias else []
        layer += [(D, hidden)] if hidden != D else []
        weights = [random(*shape, device=device, dtype=dtype) / 2 for shape in layer * layers]
        start = random(B, k0, D, device=device, dtype=dtype)
        yield f"{mode}, {layers} layers", (start, weights, mode, layers, bias, steps)


@register("memmodel::recurrent_rollout")
def _recurrent(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype.is_complex:
        return
    for name, args in _recurrent_arguments(device, dtype):
        yield Sample(name, args, differentiable=(0,), twice=False)


@register("memmodel::recurrent_rollout_backward")
def _recurrent_backward(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype.is_complex:
        return
    for name, args in _recurrent_arguments(device, dtype):
        start, weights, *rest, _steps = args
        memory, hidden, cells = torch.ops.memmodel.recurrent_rollout(*args)
        grad = torch.randn_like(memory)
        yield Sample(name, (grad, memory, hidden, cells, weights, *rest, start.shape[1]))
