"""A run: data in, a directory with a trained network and what it is worth out."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from memmodel.network import MemoryNetwork
from memmodel.train.checkpoint import (
    CHECKPOINT,
    load_checkpoint,
    save_checkpoint,
    save_network,
    write_atomically,
    write_json,
)
from memmodel.train.evaluate import forecast, measure
from memmodel.train.model import build_network, takes_inputs
from memmodel.train.options import TrainOptions
from memmodel.train.preprocessing import Preprocessing
from memmodel.train.series import Series, fingerprint
from memmodel.train.split import Split, Values, series_scales, split
from memmodel.train.threads import cpu_threads
from memmodel.train.trainer import Progress, Trainer

FORMAT_VERSION = 1
RECORD = "training.json"
LATEST = "latest.npz"
FORECAST = "forecast.csv"

Errors = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        directory: where it is saved.
        network: the trained network, on the device it was trained on.
        preprocessing: how windows become its inputs.
        split: training, validation and held-out windows.
        scales: each series' scale ``(series,)``.
        errors: series -> forecaster -> mean absolute error on the held-out windows.
        history: training and validation error after each epoch, in scaled units.
    """

    directory: Path
    network: MemoryNetwork
    preprocessing: Preprocessing
    split: Split
    scales: Values
    errors: Errors
    history: list[dict[str, float]]


def train(
    series: Sequence[Series],
    options: TrainOptions,
    directory: str | Path,
    *,
    cell_class: type[nn.Module] | None = None,
    device: str | torch.device = "auto",
    resume: bool = False,
    threads: int | None = None,
    save_every: float = 30.0,
    progress: Progress = tqdm,
) -> Run:
    """Train a forecaster on ``series``, one shared network, and save the run.

    The directory gets the network (``config.json``, ``model.safetensors``); ``training.json`` with
    options, preprocessing, history and the errors on the held-out tail beside the baselines';
    ``forecast.csv``, the forecast of what follows the data; and ``latest.npz``, the start slots
    and inputs that gave it, ready for an exported file. Until the run is finished it holds a
    checkpoint instead.

    Args:
        series: the series, from :func:`load_series`.
        options: all that decides the result.
        directory: where to save; made if needed.
        cell_class: the class that ``options.cell`` names, where it is the user's own. Its
            ``from_config`` is given ``{"slot_dim": D, "input_dim": I, **options.cell_config}``.
        device: "auto" (CUDA where present), or a torch device.
        resume: go on from the directory's checkpoint; from the start where there is none yet.
        threads: CPU threads for one operation; None: PyTorch's choice. Small networks are faster
            with one.
        save_every: seconds of training between checkpoints.
        progress: makes the progress bar; takes tqdm's arguments.

    Raises:
        FileExistsError: the directory holds a run and ``resume`` is False, or a finished one.
        ValueError: ``cell_class`` makes no cell of these widths, options or data differ from those
            of the run to resume, or a series is too short.
        RuntimeError: training diverged.
    """
    directory = Path(directory)
    identity = {"options": options.to_json(), "data": fingerprint(series)}
    state = _previous_state(directory, identity, options, resume)
    parts = split(series, options)
    scales = series_scales(series, parts, options)
    chosen = pick_device(device)
    with torch.random.fork_rng(), cpu_threads(threads):
        torch.manual_seed(options.seed)
        network = build_network(options, cell_class).to(chosen)
        trainer = Trainer(network, parts, scales, options, chosen)
        if state is not None:
            trainer.load_state(state)
        directory.mkdir(parents=True, exist_ok=True)
        trainer.fit(
            lambda state: save_checkpoint(directory, {**identity, "state": state}),
            save_every=save_every,
            progress=progress,
        )
    preprocessing = options.preprocessing()
    errors = measure(network, parts.heldout, scales, preprocessing, chosen)
    run = Run(directory, network, preprocessing, parts, scales, errors, trainer.history)
    _save(run, series, identity, chosen)
    return run


def pick_device(device: str | torch.device) -> torch.device:
    """The device that "auto" or a device's name stands for.

    Raises:
        ValueError: there is no such device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device {str(device)!r} cannot be used here; auto, cpu, cuda and cuda:N are the usual "
            f"ones: {error}"
        ) from error
    return chosen


def _previous_state(
    directory: Path, identity: dict[str, Any], options: TrainOptions, resume: bool
) -> dict[str, Any] | None:
    if (directory / RECORD).exists():
        raise FileExistsError(f"{directory} already holds a finished run: choose another directory")
    checkpoint = load_checkpoint(directory)
    if checkpoint is None:
        return None
    if not resume:
        raise FileExistsError(
            f"{directory} holds an unfinished run: pass --resume to finish it, "
            "or choose another directory"
        )
    different = options.differences(checkpoint["options"])
    if different:
        raise ValueError(f"to resume, the options must be as before: {'; '.join(different)}")
    if checkpoint["data"] != identity["data"]:
        raise ValueError("to resume, the data must be as before, but they have changed")
    return checkpoint["state"]


def _save(
    run: Run, series: Sequence[Series], identity: dict[str, Any], device: torch.device
) -> None:
    observed = np.stack([one.values[-run.preprocessing.window :] for one in series])
    start, inputs = run.preprocessing.encode(observed, run.scales)
    arrays = {"start": start, **({"inputs": inputs} if takes_inputs(run.network) else {})}
    future = forecast(run.network, run.preprocessing, observed, run.scales, device)
    save_network(run.network, run.directory)
    write_atomically(run.directory / LATEST, lambda path: _write_npz(path, arrays))
    write_atomically(
        run.directory / FORECAST, lambda path: _write_csv(path, [s.name for s in series], future)
    )
    record = {
        "format_version": FORMAT_VERSION,
        **identity,
        "device": str(device),
        "preprocessing": run.preprocessing.to_json(),
        "series": [
            {"name": one.name, "length": len(one.values), "filled": one.filled, "scale": scale}
            for one, scale in zip(series, run.scales.tolist(), strict=True)
        ],
        "heldout_errors": run.errors,
        "history": run.history,
    }
    # Last: training.json says that the run is finished.
    write_json(run.directory / RECORD, record)
    (run.directory / CHECKPOINT).unlink(missing_ok=True)


def _write_npz(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _write_csv(path: Path, names: list[str], future: Values) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *names])
        writer.writerows([step, *row] for step, row in enumerate(future.T.tolist(), start=1))
