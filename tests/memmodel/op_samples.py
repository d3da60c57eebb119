"""Sample arguments of every op registered under ``memmodel::``, for all tests of ops.

Each op's samples are a function registered here by the op's name. Samples of ops other than the
slot writes live in files named ``op_samples_*.py`` beside this one; :func:`all_ops` imports them.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """One call of an op."""

    name: str
    args: tuple[Any, ...]
    differentiable: tuple[int, ...] = ()  # positions of arguments that may require grad
    twice: bool = True  # whether backward is differentiable, too


SampleMaker = Callable[[torch.device, torch.dtype], Iterator[Sample]]
_MAKERS: dict[str, SampleMaker] = {}


def register(op: str) -> Callable[[SampleMaker], SampleMaker]:
    def keep(maker: SampleMaker) -> SampleMaker:
        _MAKERS[op] = maker
        return maker

    return keep


def all_ops() -> dict[str, SampleMaker]:
    """Sample maker by op name, such as ``memmodel::slot_write``."""
    for path in Path(__file__).parent.glob("op_samples_*.py"):
        importlib.import_module(path.stem)
    return dict(sorted(_MAKERS.items()))


def random(*shape: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool or not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, 2, shape, device=device).to(dtype)
    return torch.randn(shape, device=device, dtype=dtype)


def _slot_write_arguments(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, tuple]]:
    def make(*shape: int) -> Tensor:
        return random(*shape, device=device, dtype=dtype)

    one = torch.tensor(1, device=device)
    rows = torch.tensor([3, 0, 1], device=device)
    for slot in ((), (2,), (2, 3), (2, 1, 3)):
        for length in (1, 2):
            memory, value = make(3, 5, *slot), make(3, length, *slot)
            yield f"rank {memory.ndim}, L={length}, all rows", (memory, value, one)
            yield f"rank {memory.ndim}, L={length}, per row", (memory, value, rows)
    yield "whole memory", (make(3, 4, 2), make(3, 4, 2), torch.tensor(0, device=device))
    yield "equal rows", (make(3, 4, 2), make(3, 1, 2), torch.full((3,), 2, device=device))
    yield "index on the CPU", (make(3, 4, 2), make(3, 1, 2), torch.tensor(3))
    yield "no row", (make(0, 4, 2), make(0, 1, 2), torch.zeros(0, dtype=torch.long, device=device))
    yield "no slot", (make(3, 4, 2), make(3, 0, 2), rows)
    for name, index in (("all rows", one), ("per row", rows)):
        memory, value = make(5, 2, 3).permute(2, 0, 1), make(3, 2, 2).transpose(1, 2)
        yield f"not contiguous, {name}", (memory, value, index)
        yield f"expanded value, {name}", (make(3, 5, 2), make(3, 1, 1).expand(3, 2, 2), index)


@register("memmodel::slot_write")
def _slot_write(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for name, args in _slot_write_arguments(device, dtype):
        yield Sample(name, args, differentiable=(0, 1))


@register("memmodel::slot_write_")
def _slot_write_(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for name, args in _slot_write_arguments(device, dtype):
        yield Sample(name, args)
