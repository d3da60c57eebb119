"""Exporting a run and forecasting its whole held-out set through the exported file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from memmodel.export import ExportReport, to_onnx, to_torchscript
from memmodel.serve import Runner, run_batch
from memmodel.train.evaluate import forecast
from memmodel.train.model import takes_inputs
from memmodel.train.run import Run
from memmodel.train.split import Values


@dataclass(frozen=True)
class Exported:
    """An exported file and the largest deviation from PyTorch that its self-check found."""

    path: Path
    kind: str
    error: float


def export(run: Run, directory: Path) -> list[Exported]:
    """Write the run's network in three forms, each checked against PyTorch by its exporter.

    Raises:
        RuntimeError: a file does not give PyTorch's numbers.
    """
    network = run.network.cpu()
    plan: tuple[tuple[str, str, Callable[..., ExportReport], Literal["step", "rollout"]], ...] = (
        ("ONNX, step form", "model.step.onnx", to_onnx, "step"),
        ("ONNX, rollout form", "model.onnx", to_onnx, "rollout"),
        ("TorchScript, rollout form", "model.pt", to_torchscript, "rollout"),
    )
    exported = []
    for kind, name, write, form in plan:
        path = directory / name
        report = write(network, path, form=form, force=True)
        parity = report.metadata.parity
        if parity is None:
            raise RuntimeError(f"{path} was not compared with PyTorch")
        exported.append(Exported(path, kind, parity.max_abs_error))
    return exported


def serve_heldout(run: Run, model: Path, directory: Path) -> Values:
    """Forecast every held-out window through ``model`` and ONNX Runtime.

    The windows go through files, as in ``memmodel serve batch MODEL INPUT OUTPUT``.

    Returns:
        Forecasts ``(windows, H)`` in the data's units.
    """
    windows = run.split.heldout
    observed, _ = windows.take(slice(None))
    scale = run.scales[windows.which]
    start, inputs = run.preprocessing.encode(observed, scale)
    arrays: dict[str, Any] = {"start": start}
    if takes_inputs(run.network):
        arrays["inputs"] = inputs
    source, target = directory / "heldout.npz", directory / "served.npz"
    np.savez(source, **arrays)
    run_batch(
        Runner.load(model, device="cpu"),
        source,
        target,
        steps=run.preprocessing.horizon,
        strict=True,
        force=True,
        restart=True,
    )
    with np.load(target) as served:
        return run.preprocessing.decode(served["output"], observed, scale)


def pytorch_heldout(run: Run) -> Values:
    """Forecast every held-out window with the network itself: ``(windows, H)``."""
    windows = run.split.heldout
    observed, _ = windows.take(slice(None))
    device = next(run.network.parameters()).device
    return forecast(
        run.network, run.preprocessing, observed, run.scales[windows.which], torch.device(device)
    )
