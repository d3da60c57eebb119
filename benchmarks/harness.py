"""What every benchmark script here shares: measure, print with ratios, keep as JSON, judge.

    from harness import Requirement, judge, run, strategy

    results = run(
        "slot_memory",
        {"W1": [strategy("cat", "peers.concatenate:make", workload="W1"), ...]},
        baseline="cat",
    )
    sys.exit(judge([Requirement("SlotMemory against cat, W1", ratio, required=1.25)]))

See README.md beside this file for how strategies are written and run.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memmodel.bench import Measurement, Strategy, describe_machine, measure

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"

# More than this share of the processor taken by others, and figures are not to be trusted.
_TOLERABLE = 0.05

Results = dict[str, dict[str, Measurement]]


def strategy(name: str, factory: str, *, device: str = "cpu", **arguments: Any) -> Strategy:
    """A strategy whose factory may live in this folder, such as ``"peers.two_pass:make"``.

    Args:
        name: how results are labelled.
        factory: import path of the factory.
        device: where peak memory is measured; passed to the factory unless it is the CPU.
        arguments: keyword arguments of the factory.
    """
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    if device != "cpu":
        arguments["device"] = device
    return Strategy(name, factory, arguments, device=device, environment={"PYTHONPATH": path})


def run(
    title: str,
    groups: Mapping[str, Sequence[Strategy]],
    *,
    baseline: str | None = None,
    device: str = "cpu",
    results_file: Path | None = None,
    **options: Any,
) -> Results:
    """Measure each group of strategies, print a table per group and write everything as JSON.

    Args:
        title: names the benchmark and, unless ``results_file`` is given, the JSON file.
        groups: strategies to be compared with each other, by workload.
        baseline: the strategy that ratios refer to (its time divided by the other's).
        device: where they run, for the description of the machine.
        results_file: where to write instead of ``results/<title>.json``.
        options: passed to :func:`memmodel.bench.measure`.
    """
    results: Results = {}
    for group, strategies in groups.items():
        results[group] = measure(strategies, report=_progress, **options)
        print_table(f"{title} {group}", results[group], baseline)
    write(results_file or RESULTS / f"{title}.json", title, results, device)
    return results


def print_table(heading: str, figures: Mapping[str, Measurement], baseline: str | None) -> None:
    """Print one comparison: time, ratio to the baseline, peak memory, deviation."""
    reference = figures[baseline].best_seconds if baseline else None
    width = max(len(name) for name in figures)
    print(f"\n{heading}\n{'':{width}} {'ms':>10} {'ratio':>8} {'peak MB':>9} {'deviation':>10}")
    for name, row in figures.items():
        best = row.best_seconds
        print(
            f"{name:{width}} {_number(best, 1e3, '10.2f')}"
            f" {_number(reference and best and reference / best, 1, '7.2f')}x"
            f" {_number(row.peak_bytes, 1e-6, '9.1f')} {_number(row.deviation, 1, '10.0e')}"
            + (f"  {row.error}" if row.error else "")
        )
    taken = _taken_by_others(figures.values())
    if taken > _TOLERABLE:
        print(f"other processes took {taken:.0%} of the processor meanwhile: measure again, alone")
    sys.stdout.flush()


def write(path: Path, title: str, results: Results, device: str) -> None:
    """Write the figures with the machine and the date."""
    document = {
        "title": title,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": describe_machine(device),
        "groups": {
            group: {name: asdict(row) for name, row in figures.items()}
            for group, figures in results.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Results:
    """Read figures that :func:`write` wrote."""
    groups = json.loads(path.read_text(encoding="utf-8"))["groups"]
    return {
        group: {name: Measurement(**row) for name, row in figures.items()}
        for group, figures in groups.items()
    }


def read_machine(path: Path) -> dict[str, str]:
    """The machine that :func:`write` described."""
    return json.loads(path.read_text(encoding="utf-8"))["machine"]


@dataclass(frozen=True)
class Requirement:
    """A figure and the bounds it must meet: at least, or at most if ``lower_is_better``."""

    what: str
    value: float | None
    required: float | None = None
    goal: float | None = None
    lower_is_better: bool = False
    unit: str = "x"

    def meets(self, bound: float | None) -> bool | None:
        """Whether the value meets ``bound``; None without a bound. A missing value fails."""
        if bound is None:
            return None
        if self.value is None:
            return False
        return self.value <= bound if self.lower_is_better else self.value >= bound


def judge(requirements: Sequence[Requirement]) -> int:
    """Print the requirements as a Markdown table; 1 if a required bound is missed, else 0."""
    print("\n| | measured | required | | goal | |\n|---|---|---|---|---|---|")
    verdict = {True: "pass", False: "FAIL", None: ""}
    for line in requirements:
        sign = "≤" if line.lower_is_better else "≥"
        value = "missing" if line.value is None else f"{line.value:.2f} {line.unit}"
        required = "" if line.required is None else f"{sign} {line.required:g}"
        goal = "" if line.goal is None else f"{sign} {line.goal:g}"
        reached = {True: "reached", False: "open", None: ""}[line.meets(line.goal)]
        outcome = verdict[line.meets(line.required)]
        print(f"| {line.what} | {value} | {required} | {outcome} | {goal} | {reached} |")
    return int(any(line.meets(line.required) is False for line in requirements))


def ratio(figures: Mapping[str, Measurement], slow: str, fast: str) -> float | None:
    """How many times faster ``fast`` is than ``slow``; None if either has no figure."""
    rows = [figures.get(slow), figures.get(fast)]
    times = [row.best_seconds if row else None for row in rows]
    return None if None in times else times[0] / times[1]  # type: ignore[operator]


def _taken_by_others(rows: Iterable[Measurement]) -> float:
    """Share of all cores' time during the timed rounds."""
    rows = list(rows)
    available = sum(sum(row.seconds) for row in rows) * (os.cpu_count() or 1)
    return sum(row.others_seconds for row in rows) / available if available else 0.0


def _number(value: float | None, factor: float, form: str) -> str:
    width = int(form.split(".")[0])
    return f"{'–':>{width}}" if value is None else f"{value * factor:{form}}"


def _progress(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)
