"""Rows as readers hand them out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from memmodel.serve.signature import Array, Signature


@dataclass(frozen=True)
class Row:
    """What one rollout starts from.

    Attributes:
        start: ``(k0, *slot)`` in the model's dtype.
        inputs: ``(steps, *input)`` where the model takes inputs.
    """

    start: Array
    inputs: Array | None


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be served, and why."""

    reason: str


class Reader(Protocol):
    """An input file, read a range of rows at a time in bounded memory."""

    rows: int

    def read(self, first: int, stop: int) -> Sequence[Row | BadRow]:
        """Read the rows ``first`` to ``stop``; fastest in order."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def check_row(start: Array, inputs: Array | None, signature: Signature) -> Row | BadRow:
    """Make a row of arrays of the right shape, unless they hold a NaN or an infinity."""
    start = np.asarray(start, signature.dtype)
    if (slot := _not_finite(start)) is not None:
        return BadRow(f"start holds a NaN or an infinity in slot {slot}")
    if inputs is not None:
        inputs = np.asarray(inputs, signature.dtype)
        if (step := _not_finite(inputs)) is not None:
            return BadRow(f"inputs hold a NaN or an infinity at step {step}")
    return Row(start, inputs)


def _not_finite(values: Array) -> int | None:
    """The first index along dim 0 with a value that is not finite."""
    finite = np.isfinite(values.astype(np.float64, copy=False))
    if finite.all():
        return None
    return int(np.flatnonzero(~finite.reshape(len(values), -1).all(axis=1))[0])
