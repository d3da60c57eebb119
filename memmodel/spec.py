"""What a cell says about the tensors it takes, so that nobody needs an example to find out."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class SlotSpec:
    """Shape and dtype of a slot, or of a step's input.

    Attributes:
        shape: its shape without batch and slot dimension; ``()`` for a number per row.
        dtype: its dtype; None: that of the cell's floating-point parameters, float32 where it has
            none.

    Raises:
        ValueError: ``shape`` is no tuple of sizes.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if not _is_shape(self.shape):
            raise ValueError(f"shape must be a tuple of sizes of at least 0, got {self.shape!r}")
        object.__setattr__(self, "shape", tuple(self.shape))


@dataclass(frozen=True)
class CellSpec:
    """What a cell takes and makes: the result of its method ``spec()``.

    Attributes:
        slot: shape of a slot, without batch and slot dimension, or a :class:`SlotSpec`.
        inputs: shape of one step's input, without batch and step dimension, or a
            :class:`SlotSpec`; None where the cell takes none.
        dtype: dtype where ``slot`` and ``inputs`` name none; None as in :class:`SlotSpec`.

    Raises:
        ValueError: ``slot`` or ``inputs`` is neither a shape nor a :class:`SlotSpec`.
    """

    slot: Any
    inputs: Any = None
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "slot", _leaf("slot", self.slot))
        if self.inputs is not None:
            object.__setattr__(self, "inputs", _leaf("inputs", self.inputs))

    def resolved(self, dtype: torch.dtype) -> "CellSpec":
        """The same with every dtype named: ``dtype`` where the spec leaves it to the parameters."""
        default = self.dtype or dtype
        slot, inputs = (
            told and SlotSpec(told.shape, told.dtype or default)
            for told in (self.slot, self.inputs)
        )
        return CellSpec(slot, inputs, default)


def spec_of(cell: Any) -> CellSpec | None:
    """What ``cell.spec()`` says, every dtype named; None where the cell has no such method.

    Raises:
        TypeError: ``spec()`` returned something else than a :class:`CellSpec`.
    """
    method = getattr(cell, "spec", None)
    if not callable(method):
        return None
    spec = method()
    if not isinstance(spec, CellSpec):
        raise TypeError(
            f"{type(cell).__name__}.spec() must return a memmodel.CellSpec, "
            f"got {type(spec).__name__}"
        )
    return spec.resolved(_parameter_dtype(cell))


def _parameter_dtype(cell: Any) -> torch.dtype:
    parameters = cell.parameters() if isinstance(cell, torch.nn.Module) else ()
    return next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)


def _leaf(name: str, told: Any) -> SlotSpec:
    if isinstance(told, SlotSpec):
        return told
    if not _is_shape(told):
        raise ValueError(f"{name} must be a shape or a SlotSpec, got {told!r}")
    return SlotSpec(tuple(told))


def _is_shape(value: Any) -> bool:
    if not isinstance(value, tuple | list):
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)
