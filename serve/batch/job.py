"""One file's job, and the engine that does its windows in this process."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from memmodel.serve.batch.partial import Partial
from memmodel.serve.batch.plan import Plan
from memmodel.serve.batch.reading import open_reader
from memmodel.serve.batch.window import serve_window
from memmodel.serve.runner import Runner


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to do windows of one file.

    Attributes:
        source: the input file.
        plan: the partition.
        partial: the directory of finished windows.
        strict: whether a bad row ends the job.
    """

    source: Path
    plan: Plan
    partial: Path
    strict: bool

    @property
    def dense(self) -> bool:
        """Whether the output holds rows of one length only."""
        return self.plan.suffix != ".parquet"


# Does the given windows and yields each one's index once it is on disk.
Engine = Callable[[Runner, Job, Iterable[int]], Iterator[int]]


def serve_here(runner: Runner, job: Job, windows: Iterable[int]) -> Iterator[int]:
    """Do windows one after the other in this process.

    Raises:
        ValueError: a row is bad and the job is strict.
    """
    with closing(open_reader(job.source, runner.signature, job.plan.steps)) as reader:
        for index in windows:
            window = serve_window(runner, reader, job.plan, index, job.dense)
            if job.strict and window.errors:
                row, reason = min(window.errors.items())
                raise ValueError(f"row {row} of {job.source}: {reason}")
            Partial.save(job.partial, index, window)
            yield index
