"""The demo's tables."""

from collections.abc import Mapping, Sequence

from memmodel.bench.sweep import CAT, MEMMODEL, Points


def score_table(scores: Mapping[str, float]) -> str:
    """Errors, best first, each with how far memmodel is below it.

    Args:
        scores: forecaster -> mean absolute error.
    """
    lines = []
    for name, error in sorted(scores.items(), key=lambda item: item[1]):
        margin = 1 - scores["memmodel"] / error if error else 0.0
        side = "below" if margin >= 0 else "ABOVE"
        note = "" if name == "memmodel" else f"memmodel is {abs(margin):.0%} {side} it"
        lines.append(f"    {name:<24}{error:>8.3f}   {note}".rstrip())
    return "\n".join(lines)


def cost_table(points: Points) -> str:
    """Peak memory and time against steps, and the ratios at the greatest number of steps.

    Args:
        points: what :func:`memmodel.bench.sweep.sweep` found; a figure that is missing is a dash.
    """
    lines = [_row("steps", [str(count) for count in points])]
    for name in (CAT, MEMMODEL):
        peaks = [rows[name].peak_bytes for rows in points.values()]
        lines.append(_row(f"{name}, peak MB", [_figure(peak, 1e-6) for peak in peaks]))
    for name in (CAT, MEMMODEL):
        times = [rows[name].best_seconds for rows in points.values()]
        lines.append(_row(f"{name}, ms", [_figure(seconds, 1e3) for seconds in times]))
    last = points[max(points)]
    memory = _ratio(last[CAT].peak_bytes, last[MEMMODEL].peak_bytes)
    speed = _ratio(last[CAT].best_seconds, last[MEMMODEL].best_seconds)
    lines.append(
        f"    at {max(points)} steps: 1/{memory} of torch.cat's memory, {speed} times as fast"
    )
    return "\n".join(lines)


def _row(name: str, cells: Sequence[str]) -> str:
    return f"    {name:<24}" + "".join(f"{cell:>9}" for cell in cells)


def _figure(value: float | None, factor: float) -> str:
    return "–" if value is None else f"{value * factor:.1f}"


def _ratio(old: float | None, new: float | None) -> str:
    return f"{old / new:.2g}" if old and new else "–"
