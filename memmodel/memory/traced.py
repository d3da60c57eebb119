"""A memory's content as traced programs (torch.compile, torch.export) keep it: plain tensor ops."""

import torch
from torch import Tensor

from memmodel.memory.layout import Layout
from memmodel.memory.region import Region


class TracedStore:
    """Content as one tensor that each write replaces.

    Tracers follow plain ops and their gradients, but neither writes that autograd does not see nor
    nodes that pass a buffer along. So each write costs O(N) here, unless the compiler removes it.

    Args:
        content: the content to start from.
    """

    def __init__(self, content: Tensor) -> None:
        self.tensor = content

    @classmethod
    def empty(cls, layout: Layout) -> "TracedStore":
        """Content of a memory that holds nothing yet."""
        return cls(torch.zeros(layout.shape, dtype=layout.dtype, device=layout.device))

    @property
    def has_history(self) -> bool:
        """Whether the content depends on tensors that require grad."""
        return self.tensor.requires_grad

    @property
    def in_foreign_backward(self) -> bool:
        """Never: a program is traced before it runs backward."""
        return False

    def write(self, value: Tensor, region: Region) -> None:
        """Write a region for the first time."""
        self.tensor = region.replaced(self.tensor, value)

    def rewrite(self, value: Tensor, region: Region, *, add: bool, seen: bool) -> None:
        """Replace, or add to, what was written before."""
        self.tensor = region.replaced(self.tensor, region.of(self.tensor) + value if add else value)

    def read(self, region: Region) -> Tensor:
        """The content of a region."""
        return region.of(self.tensor)

    def gather(self, dim: int, index: Tensor) -> Tensor:
        """Copy of the slots named by a one-dimensional index."""
        return self.tensor.index_select(dim, index)

    def detach_(self) -> None:
        """Cut the content off from its history."""
        self.tensor = self.tensor.detach()
