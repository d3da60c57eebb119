"""The content of a memory and the version that says whether what was read still holds."""

import torch
from torch import Tensor

from memmodel.memory.layout import Layout
from memmodel.memory.region import Region


class Content:
    """One storage under two version counters.

    Autograd refuses a saved tensor whose version counter has moved. Readers get views of
    ``readers``; writes go through ``writer``, which has a counter of its own, because a first write
    changes nothing that could have been read. Only a change of what was read moves the readers'
    counter.

    Attributes:
        readers: what reads are views of.
        writer: the same storage, for writes.
    """

    def __init__(self, layout: Layout) -> None:
        self.readers = torch.empty(layout.shape, dtype=layout.dtype, device=layout.device)
        self.writer = self.readers.data
        # Tensors made in inference mode have no version, and autograd refuses to save them.
        self._versioned = not self.readers.is_inference()
        self._version = self.version

    @property
    def version(self) -> int:
        """The readers' version."""
        return self.readers._version if self._versioned else 0

    def check_untouched(self) -> None:
        """Raise RuntimeError if someone else changed the content."""
        if self._versioned and self.readers._version != self._version:
            raise RuntimeError(
                "a view that a SlotMemory returned was modified in place, which changed the memory "
                "itself: modify a clone() of it, or write() the new content with overwrite=True"
            )

    def rewrite(self, region: Region, value: Tensor, *, add: bool, seen: bool) -> None:
        """Replace or add to content that may have been read."""
        with torch.no_grad():
            if torch._C._is_alias_of(value, self.writer):  # type: ignore[attr-defined]
                value = value.clone()  # shifted slots: they would be overwritten while being copied
            if add:
                region.of(self.writer).add_(value)
            else:
                region.of(self.writer).copy_(value)
        if seen and self._versioned:
            torch.autograd.graph.increment_version(self.readers)
            self._version = self.readers._version

    def swap(self, region: Region, other: Tensor, *, version: int) -> Tensor:
        """Put ``other`` into ``region``, give out what was there, and set the readers' version."""
        part = region.of(self.writer)
        old = part.clone()
        part.copy_(other)
        torch._C._autograd._unsafe_set_version_counter((self.readers,), (version,))
        self._version = version
        return old
