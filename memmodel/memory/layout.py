"""Shape and dtype of a memory, and the rules for what may be written into it."""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from memmodel.memory.region import Region


class Layout:
    """Sizes of a memory, split at its slot dim.

    Args:
        shape: shape of the whole memory.
        dim: the slot dim.
        dtype: the memory's dtype; default: PyTorch's default dtype.

    Raises:
        IndexError: ``dim`` is not a dimension of ``shape``.
        ValueError: a size is negative.
    """

    def __init__(self, shape: Sequence[int], *, dim: int, dtype: torch.dtype | None) -> None:
        self.shape = tuple(operator.index(size) for size in shape)
        if not -len(self.shape) <= dim < len(self.shape):
            raise IndexError(f"dim must be a dimension of shape {self.shape}, got {dim}")
        if min(self.shape) < 0:
            raise ValueError(f"shape must have sizes of at least 0, got {self.shape}")
        self.dim = dim % len(self.shape)
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self.capacity = self.shape[self.dim]
        self._before, self._after = self.shape[: self.dim], self.shape[self.dim + 1 :]
        self._slot = self._before + self._after

    def region(self, value: Tensor, at: int, *, device: torch.device) -> Region:
        """The region that ``value``, one slot or L slots, covers from slot ``at`` on.

        Args:
            value: what to write.
            at: first slot written.
            device: the memory's device.

        Raises:
            ValueError: ``value`` has another shape or device.
            TypeError: ``value`` has another dtype.
            IndexError: the region leaves the memory.
        """
        length = self._length(value)
        if value.dtype != self.dtype:
            raise TypeError(f"value must have the memory's dtype {self.dtype}, got {value.dtype}")
        if value.device != device:
            raise ValueError(f"value must be on the memory's device {device}, got {value.device}")
        region = Region(self.dim, at, length)
        if at < 0 or region.stop > self.capacity:
            raise IndexError(
                f"slots {at} to {region.stop - 1} are not all within the memory's capacity of "
                f"{self.capacity}: make the SlotMemory larger, or reset() it"
            )
        return region

    def _length(self, value: Tensor) -> int | None:
        """L, or None for one slot without the slot dim."""
        shape = value.shape
        if shape == self._slot:
            return None
        if (
            len(shape) != len(self.shape)
            or shape[: self.dim] != self._before
            or shape[self.dim + 1 :] != self._after
        ):
            raise ValueError(
                f"value must have the shape of one slot {self._slot} or of L slots "
                f"{(*self._before, 'L', *self._after)}, got {tuple(shape)}"
            )
        return shape[self.dim]
