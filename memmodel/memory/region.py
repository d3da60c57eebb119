"""The part of a memory that one write or read touches."""

from typing import NamedTuple

import torch
from torch import Tensor


class Region(NamedTuple):
    """Slots ``start`` to ``stop - 1`` along ``dim``; ``single``: one slot, seen without ``dim``."""

    dim: int
    start: int
    stop: int
    single: bool

    def of(self, memory: Tensor) -> Tensor:
        """View of the region in ``memory``."""
        dim, start, stop, single = self
        return memory.select(dim, start) if single else memory.narrow(dim, start, stop - start)

    def replaced(self, memory: Tensor, content: Tensor) -> Tensor:
        """Copy of ``memory`` that holds ``content`` in the region: O(N), for traced programs."""
        dim, start, stop, single = self
        if single:
            return torch.select_scatter(memory, content, dim, start)
        return torch.slice_scatter(memory, content, dim, start, stop)
