"""Samples of the reads of a memory that is not filled to its end."""

from collections.abc import Iterator

import torch
from op_samples import Sample, random, register


@register("memmodel::newest_slot")
def _newest_slot(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    length = torch.tensor([1, 4, 3], device=device)
    for slot in ((), (2,), (2, 3)):
        memory = random(3, 4, *slot, device=device, dtype=dtype)
        yield Sample(f"slot {slot}", (memory, length), differentiable=(0,))


@register("memmodel::masked_read")
def _masked_read(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype.is_complex:  # softmax is for real numbers
        return
    length = torch.tensor([1, 5, 3], device=device)
    for heads in (1, 2):
        query = random(3, 4, device=device, dtype=dtype)
        memory = random(3, 5, 4, device=device, dtype=dtype)
        yield Sample(f"{heads} heads", (query, memory, length, heads), differentiable=(0, 1))
