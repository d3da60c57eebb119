"""From windows of a series to the network's start slots and inputs, and back. NumPy only."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]

HARMONICS = 2  # sine and cosine pairs per period: enough to tell every phase apart sharply


@dataclass(frozen=True)
class Preprocessing:
    """How a window of numbers becomes the memory that a forecaster starts from.

    A slot describes one point in time: the value, scaled; its age, in windows; and its phase in
    each period, as sines and cosines. Ages and phases are relative to the forecast's origin, the
    window's last point, so that a window needs no date. Every attention head sees its own part of
    a slot, so each part gets the same description, and zeros as scratch space.

    A value ``x`` is scaled to ``(x - level) / scale``: the level is the mean of the window's last
    period (its last value where there is no period), the scale a constant of the series.

    Attributes:
        window: number of observed points W that a forecast starts from.
        horizon: number of points H that it makes.
        periods: seasonal periods, in points, each at most ``window``.
        slot_dim: width D of a slot.
        parts: number of equal parts of a slot that each hold the description.

    Raises:
        ValueError: a size is not positive, a period is longer than the window or shorter than two
            points, or a part is too narrow for the description.
    """

    window: int
    horizon: int
    periods: tuple[int, ...] = ()
    slot_dim: int = 32
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("window", "horizon", "slot_dim", "parts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for period in self.periods:
            if not 2 <= period <= self.window:
                raise ValueError(
                    f"period must be between 2 and the window's {self.window} points, got {period}"
                )
        if self.slot_dim % self.parts:
            raise ValueError(f"slot_dim={self.slot_dim} must be a multiple of parts={self.parts}")
        if self.slot_dim // self.parts < 1 + self.input_dim:
            raise ValueError(
                f"{self.slot_dim} numbers in {self.parts} parts are too few: a value, its age and "
                f"its phases in {len(self.periods)} periods need {1 + self.input_dim} per part"
            )

    @property
    def input_dim(self) -> int:
        """Width I of a step's input: its age and phases."""
        return 1 + 2 * HARMONICS * len(self.periods)

    def encode(self, windows: Values, scale: Values) -> tuple[Array, Array]:
        """Make what the network takes.

        Args:
            windows: observed points ``(B, W)``, oldest first.
            scale: of each window's series ``(B,)``.

        Returns:
            start slots ``(B, W, D)`` and inputs ``(B, H, I)``, float32.
        """
        rows = len(windows)
        start = np.zeros((rows, self.window, self.parts, self.slot_dim // self.parts), np.float32)
        scaled = (windows - self.level(windows)[:, None]) / scale[:, None]
        start[..., 0] = scaled[:, :, None]
        start[..., 1 : 1 + self.input_dim] = self._moments(1 - self.window, 1)[:, None]
        inputs = np.broadcast_to(
            self._moments(1, 1 + self.horizon), (rows, self.horizon, self.input_dim)
        )
        return start.reshape(rows, self.window, self.slot_dim), inputs.copy()

    def targets(self, windows: Values, future: Values, scale: Values) -> Array:
        """Scale what follows the windows, ``(B, H)``, as the network should give it."""
        scaled = (future - self.level(windows)[:, None]) / scale[:, None]
        return scaled.astype(np.float32)

    def decode(self, output: Array, windows: Values, scale: Values) -> Values:
        """Turn the network's output ``(B, H, 1)`` into forecasts ``(B, H)`` in the data's units."""
        return self.level(windows)[:, None] + output[..., 0].astype(np.float64) * scale[:, None]

    def level(self, windows: Values) -> Values:
        """What is subtracted from each window ``(B, W)``: ``(B,)``."""
        return windows[:, -max(self.periods, default=1) :].mean(axis=1)

    def to_json(self) -> dict[str, Any]:
        """Constructor arguments, for ``training.json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, arguments: Mapping[str, Any]) -> "Preprocessing":
        """Rebuild what :meth:`to_json` described."""
        return cls(**{**arguments, "periods": tuple(arguments["periods"])})

    def _moments(self, first: int, stop: int) -> Array:
        """Age and phases of points ``first`` to ``stop``, counted from the origin: (points, I)."""
        point = np.arange(first, stop, dtype=np.float64)
        features = [point / self.window]
        for period in self.periods:
            for harmonic in range(1, HARMONICS + 1):
                angle = 2 * np.pi * harmonic * point / period
                features += [np.sin(angle), np.cos(angle)]
        return np.stack(features, axis=1).astype(np.float32)
