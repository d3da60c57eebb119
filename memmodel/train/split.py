"""Training, validation and held-out windows of several series, without leakage."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.train.options import TrainOptions
from memmodel.train.series import Series

Values = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """Windows of several series and what followed each.

    Attributes:
        series: the series, in order.
        which: index of each window's series ``(n,)``.
        origin: index of the first forecast point of each window in its series ``(n,)``.
        window: observed points before the origin.
        horizon: points from the origin on.
    """

    series: Sequence[Series]
    which: Indices
    origin: Indices
    window: int
    horizon: int

    def __len__(self) -> int:
        return len(self.origin)

    def take(self, rows: Indices | slice) -> tuple[Values, Values]:
        """Observed points ``(b, window)`` and what followed ``(b, horizon)`` of some windows."""
        which, origin = self.which[rows], self.origin[rows]
        observed = np.empty((len(origin), self.window))
        future = np.empty((len(origin), self.horizon))
        before, after = np.arange(-self.window, 0), np.arange(self.horizon)
        for index in np.unique(which):
            mine = which == index
            values = self.series[index].values
            observed[mine] = values[origin[mine, None] + before]
            future[mine] = values[origin[mine, None] + after]
        return observed, future


@dataclass(frozen=True)
class Split:
    """Windows whose forecast points lie in the training, validation and held-out part.

    The observed points of a validation or held-out window may reach back into the part before:
    a forecaster at that moment has seen them. No training window touches a later part.
    """

    training: Windows
    validation: Windows
    heldout: Windows


def split(series: Sequence[Series], options: TrainOptions) -> Split:
    """Cut each series in time: training, then validation, then the held-out tail.

    Raises:
        ValueError: a series is too short for one window in each part; the message names it.
    """
    parts: list[list[tuple[Indices, Indices]]] = [[], [], []]
    for index, one in enumerate(series):
        length = len(one.values)
        heldout = length - round(length * options.holdout)
        validation = heldout - round(length * options.validation)
        bounds = (
            ("training", options.window, validation, options.stride),
            ("validation", max(validation, options.window), heldout, 1),
            ("held-out", max(heldout, options.window), length, 1),
        )
        for part, (name, first, stop, stride) in zip(parts, bounds, strict=True):
            origins = np.arange(first, stop - options.horizon + 1, stride)
            if not origins.size:
                raise ValueError(_too_short(one, name, options))
            part.append((np.full(len(origins), index), origins))
    return Split(*(_windows(series, part, options) for part in parts))


def series_scales(series: Sequence[Series], split: Split, options: TrainOptions) -> Values:
    """Scale of each series: the root mean square of its training windows about their level.

    Up to a thousand windows, evenly spread, stand for all of them. A constant series has scale 1.
    """
    preprocessing = options.preprocessing()
    scales = np.ones(len(series))
    for index in range(len(series)):
        rows = np.flatnonzero(split.training.which == index)
        observed, _ = split.training.take(rows[:: max(1, len(rows) // 1000)])
        spread = np.sqrt(np.mean((observed - preprocessing.level(observed)[:, None]) ** 2))
        # Below float32's resolution of the values, the spread is rounding.
        if spread > 1e-6 * np.abs(observed).max():
            scales[index] = spread
    return scales


def _windows(
    series: Sequence[Series], part: list[tuple[Indices, Indices]], options: TrainOptions
) -> Windows:
    which, origin = (np.concatenate(arrays) for arrays in zip(*part, strict=True))
    return Windows(series, which, origin, options.window, options.horizon)


def _too_short(one: Series, part: str, options: TrainOptions) -> str:
    window, horizon = options.window, options.horizon
    needed = max(
        (window + horizon) / (1 - options.holdout - options.validation),
        horizon / options.holdout,
        horizon / options.validation,
    )
    return (
        f"column {one.name!r} is too short: its {len(one.values)} values leave no {part} window "
        f"of {window} + {horizon} points; about {int(np.ceil(needed)) + 1} are needed"
    )
