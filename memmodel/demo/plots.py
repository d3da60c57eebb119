"""The demo's picture of its forecasts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memmodel.train.split import Windows

Values = npt.NDArray[np.float64]

# Okabe and Ito's colours: told apart by colour-blind readers too.
_STYLES: dict[str, dict[str, Any]] = {
    "memmodel": {"color": "#0072B2", "linewidth": 2.0, "zorder": 3},
    "last value": {"color": "#999999", "linewidth": 1.2},
    "seasonal naive": {"color": "#E69F00", "linewidth": 1.2},
    "seasonal naive + growth": {"color": "#009E73", "linewidth": 1.2, "linestyle": "--"},
}


def plot_forecasts(
    path: Path,
    windows: Windows,
    forecasts: Mapping[str, Values],
    *,
    title: str,
    unit: str,
) -> None:
    """Draw the first series' held-out tail and how far each forecaster is off it.

    Args:
        path: where the PNG goes.
        windows: the held-out windows.
        forecasts: forecaster -> forecasts ``(windows, horizon)`` of all of them.
        title: what the data are.
        unit: what a point of the series is ("week").
    """
    mine = np.flatnonzero(windows.which == 0)
    figure = Figure(figsize=(12, 7.5), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(2, 1))
    _draw_tail(above, windows, mine, forecasts)
    above.set_title(title, loc="left", fontsize="medium")
    above.set_xlabel(f"{unit} of the series; a forecast begins at each vertical line")
    _draw_errors(below, windows, mine, forecasts)
    below.set_xlabel(f"{unit}s ahead")
    figure.savefig(path, format="png")


def _draw_tail(
    axes: Axes, windows: Windows, mine: npt.NDArray[np.int64], forecasts: Mapping[str, Values]
) -> None:
    """Truth, and forecasts made every horizon: each point is forecast exactly once."""
    chosen = mine[:: windows.horizon]
    values = windows.series[0].values
    first, last = windows.origin[chosen[0]], windows.origin[chosen[-1]] + windows.horizon
    shown = np.arange(first - windows.horizon, last)
    axes.plot(shown, values[shown], color="black", linewidth=1.4, label="truth", zorder=2)
    for name, all_forecasts in forecasts.items():
        for i, row in enumerate(chosen):
            points = windows.origin[row] + np.arange(windows.horizon)
            label = name if i == 0 else None
            axes.plot(points, all_forecasts[row], label=label, **_STYLES[name])
    for origin in windows.origin[chosen]:
        axes.axvline(origin, color="#dddddd", linewidth=0.8, zorder=0)
    axes.set_xlim(shown[0], shown[-1])
    axes.set_ylabel(windows.series[0].name)
    axes.legend(loc="upper left", frameon=False, ncols=2)
    _clean(axes)


def _draw_errors(
    axes: Axes, windows: Windows, mine: npt.NDArray[np.int64], forecasts: Mapping[str, Values]
) -> None:
    _, future = windows.take(mine)
    ahead = np.arange(1, windows.horizon + 1)
    for name, all_forecasts in forecasts.items():
        error = np.abs(all_forecasts[mine] - future).mean(axis=0)
        axes.plot(ahead, error, label=f"{name}: {error.mean():.3g} on average", **_STYLES[name])
    axes.set_xlim(1, windows.horizon)
    high = axes.get_ylim()[1]
    axes.set_ylim(0, high * 1.4)  # room for the legend
    axes.set_ylabel(f"mean absolute error,\n{len(mine)} held-out windows")
    axes.legend(loc="upper left", frameon=False, ncols=2)
    _clean(axes)


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, axis="y", color="#eeeeee")
    axes.set_axisbelow(True)
