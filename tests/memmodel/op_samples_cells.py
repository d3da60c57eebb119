"""Samples of the cells' rollout ops."""

from collections.abc import Iterator
from typing import Any

import torch
from op_samples import Sample, random, register


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
        start, inputs, *weights, steps, heads, scale = args
        memory = torch.ops.memmodel.attention_rollout(*args)
        first = start.shape[1]
        grad = torch.randn_like(memory)
        yield Sample(name, (grad, memory, inputs, *weights, first, heads, scale))
