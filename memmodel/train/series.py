"""Time series as training takes them: finite, in order, without gaps."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memmodel.train.files import read_columns

MISSING = ("error", "interpolate")


@dataclass(frozen=True)
class Series:
    """One evenly spaced time series.

    Attributes:
        name: its column in the file.
        values: ``(T,)`` float64, finite, oldest first.
        filled: number of values that were missing and were interpolated.
    """

    name: str
    values: npt.NDArray[np.float64]
    filled: int = 0


def load_series(
    path: str | Path, *, columns: Sequence[str] | None = None, missing: str = "error"
) -> list[Series]:
    """Read the series in ``path``, one per column.

    Args:
        path: a ``.csv``, ``.parquet``, ``.npy`` or ``.npz`` file (see :func:`read_columns`).
        columns: the columns to use; all of them unless given.
        missing: "error" refuses missing values; "interpolate" draws a straight line across a gap.
            Missing values before a series' first and after its last value only mean that it is
            shorter than the others.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file or one of its columns cannot be used; the message names it.
    """
    if missing not in MISSING:
        raise ValueError(f"missing must be one of {', '.join(MISSING)}, got {missing!r}")
    found = read_columns(path, list(columns) if columns else None)
    if not found:
        raise ValueError(f"{path}: there is no column of numbers")
    return [_clean(name, values, missing) for name, values in found.items()]


def fingerprint(series: Sequence[Series]) -> str:
    """SHA-256 of names and values: tells whether a run is resumed on the data it began with."""
    digest = hashlib.sha256()
    for one in series:
        digest.update(f"{one.name}\0{len(one.values)}\0".encode())
        digest.update(np.ascontiguousarray(one.values).tobytes())
    return digest.hexdigest()


def _clean(name: str, values: npt.NDArray[np.float64], missing: str) -> Series:
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise ValueError(f"column {name!r} holds an infinite value in row {infinite[0] + 1}")
    present = np.flatnonzero(~np.isnan(values))
    if not present.size:
        raise ValueError(f"column {name!r} holds no value")
    values = values[present[0] : present[-1] + 1]
    gaps = np.flatnonzero(np.isnan(values))
    if gaps.size and missing == "error":
        raise ValueError(
            f"column {name!r} lacks {gaps.size} of {len(values)} values, the first in row "
            f"{present[0] + gaps[0] + 1}: fill them, or pass --missing interpolate"
        )
    known = present - present[0]
    filled = np.interp(np.arange(len(values)), known, values[known])
    return Series(name, filled, filled=int(gaps.size))
