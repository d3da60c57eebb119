"""Forecasts that need no training, to measure a trained one against."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


def last_value(windows: Values, horizon: int) -> Values:
    """Repeat the last point of each window ``(B, W)``: ``(B, horizon)``."""
    return np.repeat(windows[:, -1:], horizon, axis=1)


def seasonal_naive(windows: Values, horizon: int, period: int) -> Values:
    """Repeat the last period of each window ``(B, W)``: ``(B, horizon)``."""
    return windows[:, -period:][:, np.arange(horizon) % period]


def seasonal_growth(windows: Values, horizon: int, period: int) -> Values:
    """Seasonal naive plus the growth from the last period but one to the last, once per period.

    Needs windows of at least two periods.
    """
    last, before = windows[:, -period:], windows[:, -2 * period : -period]
    growth = (last.mean(axis=1) - before.mean(axis=1))[:, None]
    return seasonal_naive(windows, horizon, period) + growth * (1 + np.arange(horizon) // period)


def baselines(windows: Values, horizon: int, periods: Sequence[int]) -> dict[str, Values]:
    """Every baseline that these windows ``(B, W)`` allow, by name; the longest period counts."""
    forecasts = {"last value": last_value(windows, horizon)}
    if periods:
        period = max(periods)
        forecasts["seasonal naive"] = seasonal_naive(windows, horizon, period)
        if 2 * period <= windows.shape[1]:
            forecasts["seasonal naive + growth"] = seasonal_growth(windows, horizon, period)
    return forecasts
