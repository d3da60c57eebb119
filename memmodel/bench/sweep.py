"""Time and peak memory against the number of steps, for torch.cat and memmodel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from memmodel.bench.measure import measure
from memmodel.bench.strategy import Measurement, Strategy

CAT, MEMMODEL = "torch.cat", "memmodel"
FACTORIES = {
    CAT: "memmodel.bench.training:make_cat",
    MEMMODEL: "memmodel.bench.training:make_memmodel",
}

# Few enough that float32 rounding has not grown, as it does over long rollouts of any cell.
_CHECKED_STEPS = 8

Points = dict[int, dict[str, Measurement]]


@dataclass(frozen=True)
class Rollout:
    """The rollout that is measured; see :func:`memmodel.bench.training.training_step`.

    Raises:
        ValueError: a size is not positive, or ``cell`` takes no shape like this.
    """

    cell: str = "attention"
    batch: int = 16
    slot: tuple[int, ...] = (64,)
    start_slots: int = 1
    input_width: int | None = None
    device: str = "cpu"
    compile: bool = False
    cell_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        sizes = {"batch": self.batch, "start_slots": self.start_slots}
        if self.input_width is not None:
            sizes["input_width"] = self.input_width
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if not self.slot or min(self.slot) < 1:
            raise ValueError(f"slot must hold sizes of at least 1, got {self.slot}")

    def strategy(self, name: str, steps: int) -> Strategy:
        """The strategy called ``name`` at a number of steps."""
        arguments: dict[str, Any] = asdict(self) | {"slot": list(self.slot), "steps": steps}
        return Strategy(name, FACTORIES[name], arguments, device=self.device)


def sweep(
    rollout: Rollout,
    steps: Sequence[int],
    *,
    strategies: Sequence[str] = (CAT, MEMMODEL),
    rounds: int = 5,
    timeout: float = 600.0,
    report: Callable[[int, str], None] = lambda steps, line: None,
) -> Points:
    """Measure forward and backward of ``rollout`` at several numbers of steps.

    A strategy that fails at one number of steps, for lack of memory or time, is not tried at
    larger ones; its measurement there says so.

    Args:
        rollout: what to measure.
        steps: numbers of steps, each ≥ 1.
        strategies: which of :data:`FACTORIES`.
        rounds: timed repetitions of each.
        timeout: seconds that one repetition may take.
        report: is told the number of steps and, in one line, what is being done.

    Returns:
        Measurements by number of steps, ascending, and by strategy.

    Raises:
        ValueError: an argument breaks one of the rules above, or the cell cannot be made or run.
        RuntimeError: memmodel and torch.cat differ.
    """
    _check(steps, strategies, rounds)
    report(0, "checking that the strategies agree")
    _check_agreement(rollout, strategies, timeout)
    points: Points = {}
    failed: dict[str, int] = {}
    for count in sorted(steps):
        trying = [rollout.strategy(name, count) for name in strategies if name not in failed]
        found = measure(trying, rounds=rounds, timeout=timeout, report=partial(report, count))
        points[count] = {
            name: found[name] if name in found else _not_tried(name, failed[name])
            for name in strategies
        }
        failed |= {name: count for name, row in found.items() if row.seconds == []}
    return points


def _check(steps: Sequence[int], strategies: Sequence[str], rounds: int) -> None:
    if not steps or min(steps) < 1 or len(set(steps)) < len(steps):
        raise ValueError(f"steps must be different numbers of at least 1, got {tuple(steps)}")
    unknown = set(strategies) - set(FACTORIES)
    if unknown or not strategies:
        raise ValueError(f"strategies must be among {tuple(FACTORIES)}, got {tuple(strategies)}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")


def _check_agreement(rollout: Rollout, strategies: Sequence[str], timeout: float) -> None:
    """Result and every gradient, before anything is timed."""
    found = measure(
        [rollout.strategy(name, _CHECKED_STEPS) for name in strategies],
        rounds=0,
        peak=False,
        reference=strategies[0],
        timeout=timeout,
    )
    for name, row in found.items():
        if row.deviation is not None and row.error is not None:
            raise RuntimeError(f"{name} with cell {rollout.cell!r}: {row.error}")
        if row.error is not None:
            raise ValueError(f"cell {rollout.cell!r} cannot be used by {name}: {row.error}")


def _not_tried(name: str, steps: int) -> Measurement:
    return Measurement(name, error=f"not tried, since it failed at {steps} steps")


def to_json(rollout: Rollout, points: Points, machine: Mapping[str, str]) -> dict[str, Any]:
    """A sweep as a JSON-ready dictionary."""
    described = asdict(rollout)
    if rollout.cell_config is None:
        del described["cell_config"]
    return {
        "rollout": described,
        "machine": dict(machine),
        "points": [
            {"steps": count, **asdict(row), "best_seconds": row.best_seconds}
            for count, rows in points.items()
            for row in rows.values()
        ],
    }
