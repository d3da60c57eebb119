"""A picture of a sweep: time and peak memory of a training step against the number of steps."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from memmodel.bench.strategy import Measurement
from memmodel.bench.sweep import CAT, MEMMODEL, Points

Value = Callable[[Measurement], float | None]

# Okabe and Ito's colours: told apart by colour-blind readers too.
_COLORS = {CAT: "#D55E00", MEMMODEL: "#0072B2"}


def plot_sweep(path: str | Path, points: Points, *, title: str, note: str = "") -> None:
    """Draw a sweep as PNG.

    Args:
        path: where the picture goes.
        points: what :func:`memmodel.bench.sweep.sweep` found.
        title: what was measured.
        note: small print below, such as the machine.
    """
    figure = Figure(figsize=(10, 4.4), dpi=130, layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, fontweight="bold")
    if note:
        figure.supxlabel(note, x=0.012, ha="left", fontsize=8, color="#666666")
    time, memory = figure.subplots(1, 2)
    _draw(time, points, "time of forward + backward", _milliseconds, "ms")
    _draw(memory, points, "peak memory of forward + backward", _megabytes, "MB")
    figure.savefig(path, format="png")


def _milliseconds(row: Measurement) -> float | None:
    return None if row.best_seconds is None else row.best_seconds * 1e3


def _megabytes(row: Measurement) -> float | None:
    # What rounds to nothing has no place on a logarithmic axis.
    return row.peak_bytes / 1e6 if row.peak_bytes else None


def _draw(axes: Axes, points: Points, heading: str, value: Value, unit: str) -> None:
    names = list(next(iter(points.values())))
    for name in names:
        found = [(steps, value(rows[name])) for steps, rows in points.items()]
        shown = [(steps, y) for steps, y in found if y is not None]
        if not shown:
            continue
        xs, ys = zip(*shown, strict=True)
        axes.plot(xs, ys, color=_COLORS[name], marker="o", markersize=5, linewidth=2, label=name)
        axes.annotate(
            f"{_plain(ys[-1])} {unit}",
            (xs[-1], ys[-1]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=_COLORS[name],
        )
    axes.set_title(f"{heading}, {unit}", loc="left", fontsize=10)
    _scale(axes, list(points))
    if axes.lines:
        axes.legend(loc="upper left", frameon=False, fontsize=9)


def _scale(axes: Axes, steps: Sequence[int]) -> None:
    """Logarithmic axes with plain numbers: a slope of 1 is linear, of 2 quadratic."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(steps, [str(count) for count in steps])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _plain(y)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.17, y=0.1)
    axes.set_xlabel("steps")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, axis="y", color="#eeeeee")
    axes.set_axisbelow(True)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
