"""The part of a memory that one write or read touches."""

from typing import NamedTuple

import torch
from torch import Tensor


class Region(NamedTuple):
    """``length`` slots along ``dim`` from ``start`` on; where it is None: one, without ``dim``."""

    dim: int
    start: int
    length: int | None

    @property
    def stop(self) -> int:
        """One past the last slot."""
        return self.start + (1 if self.length is None else self.length)

    def of(self, memory: Tensor) -> Tensor:
        """View of the region in ``memory``."""
        if self.length is None:
            return memory.select(self.dim, self.start)
        return memory.narrow(self.dim, self.start, self.length)

    def replaced(self, memory: Tensor, content: Tensor) -> Tensor:
        """Copy of ``memory`` that holds ``content`` in the region: O(N), for traced programs."""
        if self.length is None:
            return torch.select_scatter(memory, content, self.dim, self.start)
        return torch.slice_scatter(memory, content, self.dim, self.start, self.stop)
