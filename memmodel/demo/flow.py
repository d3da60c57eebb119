"""The demo's flow: each stage does its part, says what it found and notes what it missed."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from memmodel.bench import describe_machine
from memmodel.bench.plot import plot_sweep
from memmodel.bench.sweep import CAT, MEMMODEL, Points, Rollout, sweep, to_json
from memmodel.demo.plots import plot_forecasts
from memmodel.demo.serving import export, pytorch_heldout, serve_heldout
from memmodel.demo.tables import cost_table, score_table
from memmodel.train.baselines import baselines
from memmodel.train.checkpoint import write_json
from memmodel.train.options import TrainOptions
from memmodel.train.run import Run, train
from memmodel.train.series import Series
from memmodel.train.split import Values
from memmodel.train.trainer import Progress

STEPS = (128, 256, 512)
MUST_BEAT = ("last value", "seasonal naive")
# Largest deviation of served forecasts from PyTorch's, in units of the series' scale: float32
# rounding, carried through a horizon of steps.
PARITY = 1e-4
SUMMARY = "demo.json"


class Demo:
    """Runs the demo and keeps what it found.

    Args:
        directory: where everything is written.
        title: what the data are.
        source: where they come from.
        unit: what a point of the series is ("week").
        echo: shows a line.
    """

    def __init__(
        self,
        directory: Path,
        *,
        title: str,
        source: str,
        unit: str,
        echo: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self.title = title
        self.source = source
        self.unit = unit
        self._echo = echo
        self._unreached: list[str] = []
        self._summary: dict[str, Any] = {"data": title, "source": source}

    def run(
        self,
        series: Sequence[Series],
        options: TrainOptions,
        *,
        steps: Sequence[int] = STEPS,
        progress: Progress = tqdm,
    ) -> list[str]:
        """Go through all stages.

        Args:
            series: the data.
            options: how to train.
            steps: numbers of steps to measure costs at.
            progress: makes a progress bar; takes tqdm's arguments.

        Returns:
            The promises that were not kept, one line each.

        Raises:
            FileExistsError: the directory holds something else than an earlier demo.
            ValueError: the data cannot be used.
        """
        began = time.monotonic()
        self._prepare()
        self._describe(series)
        run = self._train(series, options, progress)
        model = self._export(run)
        self._serve(run, model)
        self._measure(steps, progress)
        self._finish(time.monotonic() - began)
        return self._unreached

    def _prepare(self) -> None:
        """Make room, without ever removing what is not ours."""
        if self.directory.exists() and any(self.directory.iterdir()):
            if not (self.directory / SUMMARY).is_file():
                raise FileExistsError(
                    f"{self.directory} holds something else than an earlier demo: "
                    "choose another --out"
                )
            shutil.rmtree(self.directory / "run", ignore_errors=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(self.directory / SUMMARY, {"finished": False})

    def _describe(self, series: Sequence[Series]) -> None:
        self._echo(f"Data: {self.title}\n  {self.source}")
        for one in series:
            filled = f", {one.filled} of them missing and interpolated" if one.filled else ""
            self._echo(f"  {one.name}: {len(one.values)} {self.unit}s{filled}")

    def _train(self, series: Sequence[Series], options: TrainOptions, progress: Progress) -> Run:
        self._echo(
            f"\nTraining: {options.horizon} {self.unit}s from the {options.window} before, "
            f"{options.epochs} epochs"
        )
        # Operations this small take longer to share out among threads than to do.
        run = train(series, options, self.directory / "run", threads=1, progress=progress)
        scores = _scores(run)
        heldout = len(run.split.heldout)
        self._echo(f"  Mean absolute error on {heldout} windows of the held-out tail:")
        self._echo(score_table(scores))
        for name in MUST_BEAT:
            if not scores["memmodel"] < scores[name]:
                self._unreached.append(
                    f"memmodel's error {scores['memmodel']:.3g} is not below "
                    f"that of {name}, {scores[name]:.3g}"
                )
        self._summary["heldout_errors"] = run.errors
        return run

    def _export(self, run: Run) -> Path:
        self._echo("\nExport: largest deviation of each file from PyTorch")
        exported = export(run, self.directory)
        for one in exported:
            self._echo(f"  {one.error:.1e}  {one.kind}, {one.path.name}")
        self._summary["export_errors"] = {one.path.name: one.error for one in exported}
        return exported[0].path

    def _serve(self, run: Run, model: Path) -> None:
        rows = len(run.split.heldout)
        self._echo(f"\nServing: all {rows} held-out windows through ONNX Runtime, {model.name}")
        began = time.monotonic()
        served = serve_heldout(run, model, self.directory)
        seconds = time.monotonic() - began
        scale = run.scales[run.split.heldout.which]
        deviation = float((np.abs(served - pytorch_heldout(run)) / scale[:, None]).max())
        self._echo(f"  {seconds:.1f} s, largest deviation from PyTorch's forecasts {deviation:.1e}")
        if not deviation <= PARITY:
            self._unreached.append(
                f"served forecasts deviate from PyTorch's by {deviation:.1e}, more than {PARITY}"
            )
        self._summary |= {"served_rows": rows, "served_deviation": deviation}
        self._draw(run, served)

    def _draw(self, run: Run, served: Values) -> None:
        windows, preprocessing = run.split.heldout, run.preprocessing
        observed, _ = windows.take(slice(None))
        plain = baselines(observed, preprocessing.horizon, preprocessing.periods)
        plot_forecasts(
            self.directory / "forecast.png",
            windows,
            {"memmodel": served, **plain},
            title=f"{self.title}: forecasts of the held-out tail, served by ONNX Runtime",
            unit=self.unit,
        )

    def _measure(self, steps: Sequence[int], progress: Progress) -> None:
        rollout = Rollout(cell="attention", batch=16, slot=(64,))
        what = "a training step of an attention cell, 16 rows, slots of 64"
        self._echo(f"\nCost of {what}, on this machine:")
        with progress(total=len(steps), unit="size", desc="measuring") as bar:

            def report(count: int, line: str) -> None:
                bar.update(sum(done < count for done in steps) - bar.n)

            points = sweep(rollout, steps, rounds=3, report=report)
            bar.update(len(steps) - bar.n)
        self._echo(cost_table(points))
        machine = describe_machine()
        plot_sweep(
            self.directory / "cost.png",
            points,
            title=f"Cost of {what}",
            note=f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}",
        )
        self._summary["costs"] = to_json(rollout, points, machine)
        self._judge(points)

    def _judge(self, points: Points) -> None:
        for steps, rows in points.items():
            for name, row in rows.items():
                if row.error is not None:
                    self._unreached.append(f"{name} at {steps} steps: {row.error}")
        last = points[max(points)]
        cat, ours = last[CAT].peak_bytes, last[MEMMODEL].peak_bytes
        if cat is not None and ours is not None and not ours < cat:
            self._unreached.append(
                f"memmodel's peak memory at {max(points)} steps, {ours} bytes, is not below "
                f"torch.cat's {cat}"
            )

    def _finish(self, seconds: float) -> None:
        self._summary |= {
            "finished": True,
            "seconds": round(seconds, 1),
            "unreached": self._unreached,
        }
        write_json(self.directory / SUMMARY, self._summary)
        self._echo(f"\nAll of it is in {self.directory.resolve()}:")
        for name, what in _CONTENTS.items():
            self._echo(f"  {name:<16}{what}")
        self._echo(f"Took {seconds:.0f} s.")


_CONTENTS = {
    "forecast.png": "forecasts of the held-out tail beside the baselines",
    "cost.png": "peak memory and time against the number of steps",
    "run/": "the trained network, its record, and a forecast of what follows the data",
    "model.step.onnx": "one step per call: the fast form, for serving",
    "model.onnx": "a whole forecast per call, in one self-contained file",
    "model.pt": "the same for TorchScript",
    "heldout.npz": "the held-out windows, as the model takes them",
    "served.npz": "what ONNX Runtime made of them",
    SUMMARY: "every figure above",
}


def _scores(run: Run) -> dict[str, float]:
    """Each forecaster's error; several series are averaged in units of their scales."""
    if len(run.errors) == 1:
        return dict(next(iter(run.errors.values())))
    scaled = [
        {name: error / scale for name, error in errors.items()}
        for errors, scale in zip(run.errors.values(), run.scales.tolist(), strict=True)
    ]
    return {name: float(np.mean([row[name] for row in scaled])) for name in scaled[0]}
