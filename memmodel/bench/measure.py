"""Comparing strategies fairly: own processes, alternating rounds, the fastest round counts."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from memmodel.bench.parity import largest_deviation
from memmodel.bench.process import StrategyError, StrategyProcess
from memmodel.bench.strategy import Measurement, Strategy

# Freed memory of any size goes back to the system at once, so that the resident size follows the
# live tensors. It slows allocation down, hence a process of its own, apart from the timed one.
_PEAK_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

Report = Callable[[str], None]


def measure(
    strategies: Sequence[Strategy],
    *,
    rounds: int = 5,
    warm_up: int = 1,
    peak: bool | Collection[str] = True,
    reference: str | None = None,
    tolerance: float = 1e-3,
    timeout: float = 600.0,
    report: Report = lambda line: None,
) -> dict[str, Measurement]:
    """Measure time and peak memory of each strategy.

    All strategies stay loaded while they are timed, and take turns within each round, so that a
    slow phase of the machine meets all of them. A strategy that fails is reported in its
    ``error`` and drops out; the others go on.

    Args:
        strategies: what to compare.
        rounds: timed repetitions of each; 0 leaves timing out.
        warm_up: untimed repetitions before them, ≥ 1.
        peak: whether to measure peak memory, or the names of the strategies to measure it for.
        reference: name of the strategy whose outputs the others must reproduce, or None.
        tolerance: largest relative deviation from the reference that is allowed.
        timeout: seconds that one repetition may take.
        report: is told in one line what is being done.

    Returns:
        One measurement per strategy, by name, in the order given.

    Raises:
        ValueError: an argument breaks one of the rules above, or names are not unique.
    """
    _check(strategies, rounds, warm_up, reference)
    results = {strategy.name: Measurement(strategy.name) for strategy in strategies}
    if rounds or reference is not None:
        with ExitStack() as processes:
            workers = _load(strategies, results, timeout, report, processes)
            _warm_up(workers, results, warm_up, reference, tolerance, report)
            _time(workers, results, rounds, report)
    chosen = [one for one in strategies if peak is True or (peak and one.name in peak)]
    _measure_peaks(chosen, results, warm_up, timeout, report)
    return results


def _check(
    strategies: Sequence[Strategy], rounds: int, warm_up: int, reference: str | None
) -> None:
    names = [strategy.name for strategy in strategies]
    if len(set(names)) != len(names):
        raise ValueError(f"strategies must have unique names, got {names}")
    if rounds < 0:
        raise ValueError(f"rounds must not be negative, got {rounds}")
    if warm_up < 1:
        raise ValueError(f"warm_up must be at least 1, got {warm_up}")
    if reference is not None and reference not in names:
        raise ValueError(f"reference must be one of {names}, got {reference!r}")


@contextmanager
def _recorded(figures: Measurement) -> Iterator[None]:
    """Turn a strategy's failure into the ``error`` of its measurement."""
    try:
        yield
    except StrategyError as error:
        figures.error, figures.details = str(error), error.details


def _load(
    strategies: Sequence[Strategy],
    results: dict[str, Measurement],
    timeout: float,
    report: Report,
    processes: ExitStack,
) -> dict[str, StrategyProcess]:
    workers = {}
    for strategy in strategies:
        report(f"loading {strategy.name}")
        worker = processes.enter_context(StrategyProcess(strategy, timeout=timeout))
        with _recorded(results[strategy.name]):
            results[strategy.name].load_seconds = worker.load()
        workers[strategy.name] = worker
    return workers


def _warm_up(
    workers: dict[str, StrategyProcess],
    results: dict[str, Measurement],
    warm_up: int,
    reference: str | None,
    tolerance: float,
    report: Report,
) -> None:
    """First repetitions; the outputs of the very first are compared with the reference's."""
    with tempfile.TemporaryDirectory() as directory:
        files = {name: str(Path(directory, f"{i}.npz")) for i, name in enumerate(workers)}
        for name, worker in _in_play(workers, results):
            report(f"warming up {name}")
            with _recorded(results[name]):
                results[name].first_seconds, _ = worker.run(
                    outputs=files[name] if reference is not None else None
                )
                for _ in range(warm_up - 1):
                    worker.run()
        if reference is not None:
            _compare(workers, results, files, reference, tolerance)


def _compare(
    workers: dict[str, StrategyProcess],
    results: dict[str, Measurement],
    files: dict[str, str],
    reference: str,
    tolerance: float,
) -> None:
    cause = results[reference].error
    for name, _ in _in_play(workers, results):
        figures = results[name]
        if cause is not None:
            figures.error = f"cannot be checked, since the reference {reference} failed: {cause}"
            continue
        with _recorded(figures):
            figures.deviation = largest_deviation(files[name], files[reference])
            if not figures.deviation <= tolerance:  # also true of NaN
                raise StrategyError(
                    f"its outputs deviate from those of {reference} by {figures.deviation:.1e}, "
                    f"more than {tolerance:.1e}"
                )


def _time(
    workers: dict[str, StrategyProcess],
    results: dict[str, Measurement],
    rounds: int,
    report: Report,
) -> None:
    for i in range(rounds):
        report(f"round {i + 1} of {rounds}")
        for name, worker in _in_play(workers, results):
            with _recorded(results[name]):
                seconds, others = worker.run()
                results[name].seconds.append(seconds)
                results[name].others_seconds += others


def _measure_peaks(
    strategies: Sequence[Strategy],
    results: dict[str, Measurement],
    warm_up: int,
    timeout: float,
    report: Report,
) -> None:
    for strategy in strategies:
        figures = results[strategy.name]
        if figures.error is not None:
            continue
        report(f"peak memory of {strategy.name}")
        environment = _PEAK_ENVIRONMENT | dict(strategy.environment)
        with (
            _recorded(figures),
            StrategyProcess(replace(strategy, environment=environment), timeout=timeout) as worker,
        ):
            worker.load(strategy.small)
            for _ in range(warm_up):
                worker.run()
            if strategy.small is not None:
                worker.load()
            figures.peak_bytes = worker.peak()


def _in_play(
    workers: dict[str, StrategyProcess], results: dict[str, Measurement]
) -> Iterator[tuple[str, StrategyProcess]]:
    return ((name, worker) for name, worker in workers.items() if results[name].error is None)
