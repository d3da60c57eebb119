"""What is measured and what was found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Strategy:
    """One way of doing a piece of work, loaded and run in a process of its own.

    Args:
        name: how results are labelled; unique within a comparison.
        factory: import path ``"package.module:function"``. ``function(**arguments)`` prepares the
            work and returns a callable; each call of it does the work once, finished when it
            returns (asynchronous CPU runtimes must wait; CUDA is synchronised by the worker). What
            the callable returns, a mapping of name to tensor or array, can be compared with a
            reference strategy.
        arguments: keyword arguments of the factory, JSON-serialisable.
        device: ``"cpu"`` or a CUDA device: where peak memory is measured.
        environment: variables added to the process's environment.
        small: arguments that replace ``arguments`` for the warm-up before peak memory is measured.
            For frameworks that keep freed memory to themselves (TensorFlow): after a warm-up at
            full size they would not ask the system for any. None: warm up at full size.
    """

    name: str
    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    environment: Mapping[str, str] = field(default_factory=dict)
    small: Mapping[str, Any] | None = None


@dataclass
class Measurement:
    """Figures of one strategy; ``error`` says in one line why some are missing.

    Args:
        name: the strategy's name.
        load_seconds: imports and the factory's own work.
        first_seconds: the first repetition, which includes compilation.
        seconds: one figure per timed round.
        others_seconds: processor time that other processes took during the timed rounds, in all.
        peak_bytes: peak memory of one repetition above the warmed-up process, in bytes.
        deviation: largest deviation from the reference's outputs, relative to the largest
            magnitude of each; None if there was no reference.
        error: why measuring stopped, or None.
        details: the traceback, or the last lines the process wrote before it died.
    """

    name: str
    load_seconds: float | None = None
    first_seconds: float | None = None
    seconds: list[float] = field(default_factory=list)
    others_seconds: float = 0.0
    peak_bytes: int | None = None
    deviation: float | None = None
    error: str | None = None
    details: str = ""

    @property
    def best_seconds(self) -> float | None:
        """The fastest round: the least disturbed by whatever else the machine was doing."""
        return min(self.seconds, default=None)
