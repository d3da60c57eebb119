"""Turn kept figures of train.py into Markdown and a picture.

python benchmarks/report.py        # results/train.md and docs/img/peers.png
"""

import math
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness import HERE, RESULTS, judge, read, read_machine
from memmodel.bench import Measurement
from train import GROUPS, requirements
from workloads import WORKLOADS

PICTURE = HERE.parent / "docs" / "img" / "peers.png"
SHOWN = "W1"
PEERS = RESULTS / f"train-{SHOWN}-peers.json"
_OURS = ("AttentionCell", "any cell", "SlotMemory", "RecurrentCell")


def main() -> None:
    results = {}
    for group in GROUPS:
        results |= read(RESULTS / f"train-{group}.json")
    machine = read_machine(PEERS)
    peers = read(PEERS)[SHOWN]
    lines = ["Measured on " + ", ".join(f"{key} {value}" for key, value in machine.items()) + "."]
    lines += ["", "## Bounds", _bounds(results)]
    for group in (name for name in GROUPS if name in WORKLOADS):
        lines += ["", f"## {group}: {_shape(group)}", "", *_table(results[group])]
    lines += ["", f"## {SHOWN}, all peers, another run, nothing compiled by PyTorch", ""]
    lines += _table(peers)
    (RESULTS / "train.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _draw(PICTURE, peers, machine)


def _bounds(results: dict[str, dict[str, Measurement]]) -> str:
    with redirect_stdout(StringIO()) as text:
        judge(requirements(results))
    return text.getvalue().rstrip()


def _shape(group: str) -> str:
    one = WORKLOADS[group]
    return f"{one.cell} cell, batch {one.batch}, width {one.width}, {one.slots} slots"


def _table(figures: dict[str, Measurement]) -> list[str]:
    best_cat = min(
        row.best_seconds for name, row in figures.items() if _is_cat(name) and row.best_seconds
    )
    lines = [
        "| strategy | ms | vs fastest cat | peak MB | deviation |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in figures.items():
        if row.best_seconds is None:
            lines.append(f"| {name} | failed: {row.error} | | | |")
            continue
        peak = "–" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}"
        lines.append(
            f"| {name} | {row.best_seconds * 1e3:.1f} | {best_cat / row.best_seconds:.2f}× "
            f"| {peak} | {row.deviation:.0e} |"
        )
    return lines


def _is_cat(name: str) -> bool:
    return name.split()[0] == "cat"


def _draw(path: Path, figures: dict[str, Measurement], machine: dict[str, str]) -> None:
    """Every strategy at one workload: time and peak memory as bars, the fastest on top."""
    rows = sorted(
        (row for row in figures.values() if row.best_seconds),
        key=lambda row: -row.best_seconds,
    )
    figure = Figure(figsize=(11, 0.34 * len(rows) + 1.6), dpi=130, layout="constrained")
    figure.suptitle(f"{SHOWN}: {_shape(SHOWN)}", x=0.012, ha="left", fontweight="bold")
    note = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, float32"
    figure.supxlabel(note, x=0.012, ha="left", fontsize=8, color="#666666")
    time, memory = figure.subplots(1, 2, sharey=True)
    _bars(time, rows, [row.best_seconds * 1e3 for row in rows], "forward + backward, ms")
    _bars(
        memory,
        rows,
        [(row.peak_bytes or math.nan) / 1e6 for row in rows],
        "peak memory, MB (log scale)",
    )
    memory.set_xscale("log")
    memory.set_xlim(left=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _bars(axes: Axes, rows: list[Measurement], values: list[float], heading: str) -> None:
    colors = ["#0072B2" if row.name.startswith(_OURS) else "#BBBBBB" for row in rows]
    bars = axes.barh([row.name for row in rows], values, color=colors, height=0.7)
    labels = ["not measured" if math.isnan(value) else f"{value:,.0f}" for value in values]
    for bar, label in zip(bars, labels, strict=True):
        end = 1 if math.isnan(bar.get_width()) else bar.get_width()
        axes.annotate(
            label,
            (end, bar.get_y() + bar.get_height() / 2),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_title(heading, loc="left", fontsize=10)
    axes.margins(x=0.12)
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
    axes.tick_params(which="both", left=False, bottom=False, labelbottom=False)


if __name__ == "__main__":
    main()
