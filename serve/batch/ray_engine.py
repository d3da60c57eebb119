"""Windows spread over a Ray cluster: Ray Data's ``map_batches`` with a pool of actors."""

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

    def __post_init__(self) -> None:
        self._runner = Runner.load(self.model, self.device)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Do a batch of windows and hand their indices on."""
        for _ in serve_here(self._runner, self.job, (int(index) for index in batch["item"])):
            pass
        return batch


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
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    remote = replace(job, source=job.source.resolve(), partial=job.partial.resolve())
    indices = ray.data.from_items(list(windows), override_num_blocks=max(1, len(list(windows))))
    done = indices.map_batches(
        _Worker,
        fn_constructor_args=(runner.path.resolve(), runner.device, remote),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1),
        num_gpus=0 if runner.device == "cpu" else 1,
    )
    for batch in done.iter_batches(batch_size=1):
        yield int(batch["item"][0])
