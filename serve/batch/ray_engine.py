"""Windows spread over a Ray cluster: Ray Data's ``map_batches`` with a pool of actors."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memmodel.serve.batch.job import Job, serve_here
from memmodel.serve.runner import Runner


@dataclass
class _Worker:
    """An actor: loads the model once and does the windows it is given.

    Workers write finished windows themselves, so on several machines the model, the input and the
    output have to lie on a file system that all of them share.
    """

    model: Path
    device: str
    job: Job
    classes: tuple[type, ...]

    def __post_init__(self) -> None:
        self._runner = Runner.load(self.model, self.device, classes=self.classes)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Do a window; hand its index on, and why it was refused if it was."""
        try:
            for _ in serve_here(self._runner, self.job, map(int, batch["item"])):
                pass
        except ValueError as error:  # Ray would not carry it to the driver as what it is
            return {"item": batch["item"], "refused": [str(error)]}
        return {"item": batch["item"], "refused": [""]}


def serve_on_ray(runner: Runner, job: Job, windows: Iterable[int]) -> Iterator[int]:
    """Do windows on a Ray cluster; starts a local one unless the process is connected already.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: a row is bad and the job is strict.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "engine 'ray' needs Ray: pip install 'memmodel[ray]'", name=error.name
        ) from error
    waiting = list(windows)
    if not waiting:
        return
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    remote = replace(job, source=job.source.resolve(), partial=job.partial.resolve())
    done = ray.data.from_items(waiting, override_num_blocks=len(waiting)).map_batches(
        _Worker,
        fn_constructor_args=(
            runner.path.resolve(),
            runner.device.partition(":")[0],
            remote,
            runner.classes,
        ),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=len(waiting)),
        num_gpus=0 if runner.device == "cpu" else 1,
    )
    for batch in done.iter_batches(batch_size=1):
        if reason := str(batch["refused"][0]):
            raise ValueError(reason)
        yield int(batch["item"][0])
