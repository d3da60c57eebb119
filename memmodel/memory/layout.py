"""Shape, dtype and device of a memory, and the rules for what may be written into it."""

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
        device: the memory's device; default: PyTorch's default device.

    Raises:
        IndexError: ``dim`` is not a dimension of ``shape``.
        ValueError: a size is negative.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        dim: int,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        self.shape = tuple(operator.index(size) for size in shape)
        if not -len(self.shape) <= dim < len(self.shape):
            raise IndexError(f"dim must be a dimension of shape {self.shape}, got {dim}")
        if min(self.shape) < 0:
            raise ValueError(f"shape must have sizes of at least 0, got {self.shape}")
        self.dim = dim % len(self.shape)
        self.capacity = self.shape[self.dim]
        probe = torch.empty(0, dtype=dtype, device=device)  # fills in defaults, such as cuda:0
        self.dtype, self.device = probe.dtype, probe.device
        self._before, self._after = self.shape[: self.dim], self.shape[self.dim + 1 :]
        self._slot = self._before + self._after

    def region(self, value: Tensor, at: int) -> Region:
        """The region that ``value``, one slot or L slots, covers from slot ``at`` on.

        Raises:
            ValueError: ``value`` has another shape or device.
            TypeError: ``value`` has another dtype.
            IndexError: the region leaves the memory.
        """
        if not isinstance(value, Tensor):
            raise TypeError(f"value must be a Tensor, got {type(value).__name__}")
        single = value.shape == self._slot
        stop = at + (1 if single else self._length(value))
        if value.dtype != self.dtype:
            raise TypeError(f"value must have the memory's dtype {self.dtype}, got {value.dtype}")
        if value.device != self.device:
            raise ValueError(
                f"value must be on the memory's device {self.device}, got {value.device}"
            )
        if at < 0 or stop > self.capacity:
            raise IndexError(
                f"slots {at} to {stop - 1} are not all within the memory's capacity of "
                f"{self.capacity}: make the SlotMemory larger, or reset() it"
            )
        return Region(self.dim, at, stop, single)

    def _length(self, value: Tensor) -> int:
        """How many slots ``value``, which has the slot dim, holds."""
        shape = value.shape
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
