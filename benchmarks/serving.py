"""Serving: the step form against the rollout form and eager PyTorch, writes, throughput, HTTP.

python benchmarks/serving.py            # everything, judged
python benchmarks/serving.py rollout    # one part: rollout, write, throughput, http
"""

import argparse
import atexit
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness import RESULTS, Requirement, Results, judge, ratio, run, strategy

WIDTH, STEPS = 256, 1000
BATCHES = (1, 8, 64)
LENGTHS = (1_000, 100_000)
_WRITES = 2000
Once = Callable[[], Mapping[str, Any]]


def _start(batch: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((batch, 1, WIDTH)).astype(np.float32) / 2


def make_eager(folder: str, batch: int, steps: int = STEPS) -> Once:
    """PyTorch under inference_mode, the cell called on a growing view of one memory."""
    import torch

    from memmodel import MemoryNetwork

    cell = MemoryNetwork.load(Path(folder) / "run").eval().cell
    start = torch.from_numpy(_start(batch))

    @torch.inference_mode()
    def once() -> Mapping[str, Any]:
        memory = start.new_zeros(batch, 1 + steps, WIDTH)
        memory[:, :1] = start
        for i in range(1, 1 + steps):
            memory[:, i] = cell(memory[:, :i])
        return {"memory": memory}

    return once


def make_runner(folder: str, file: str, batch: int, steps: int = STEPS) -> Once:
    """A file or a saved run through the runner."""
    from memmodel.serve import Runner

    runner, start = Runner.load(Path(folder) / file, "cpu"), _start(batch)
    return lambda: runner.rollout(start, steps)


def make_writes(folder: str, length: int) -> Once:
    """Steps of a session whose cell reads its newest slot only, at a memory of that length."""
    from memmodel.serve import Runner

    session = Runner.load(Path(folder) / "newest.onnx", "cpu", threads=1).session(1)
    session.feed(np.zeros((1, length, WIDTH), np.float32))

    def once() -> Mapping[str, Any]:
        return session.rollout(_WRITES)

    return once


def make_http(folder: str, batch: int, steps: int, service: bool) -> Once:
    """One request over loopback, or the same call of the runner."""
    if not service:
        return make_runner(folder, "step.onnx", batch, steps)
    import socket

    import tritonclient.http as client

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "memmodel", "serve", "http", f"{folder}/step.onnx"]
    command += ["--name", "net", "--port", str(port), "--max-delay", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    if "is served at" not in process.stderr.readline():  # type: ignore[union-attr]
        raise RuntimeError("the service did not start")
    atexit.register(process.kill)
    connection = client.InferenceServerClient(f"127.0.0.1:{port}")
    tensors = []
    for name, value, kind in (
        ("start", _start(batch), "FP32"),
        ("steps", np.array([steps]), "INT64"),
    ):
        tensor = client.InferInput(name, list(value.shape), kind)
        tensor.set_data_from_numpy(value)
        tensors.append(tensor)
    return lambda: {"memory": connection.infer("net", tensors).as_numpy("memory")}


def export(folder: Path) -> None:
    """Write the artifacts that are measured."""
    import torch
    from torch import nn

    from memmodel import AttentionCell, MemoryNetwork
    from memmodel.export import to_onnx

    class Newest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH))

        def forward(self, prefix: torch.Tensor) -> torch.Tensor:
            return torch.tanh(prefix[:, -1] * self.weight)

    torch.manual_seed(0)
    network = MemoryNetwork(AttentionCell(WIDTH)).eval()
    network.save(folder / "run")
    to_onnx(network, folder / "step.onnx", form="step")
    to_onnx(network, folder / "prefix.onnx", form="step", state="prefix")
    to_onnx(network, folder / "rollout.onnx")
    newest = MemoryNetwork(Newest()).eval()
    to_onnx(newest, folder / "newest.onnx", form="step", start=torch.randn(4, 4, WIDTH))


def rollouts(folder: str, rounds: int) -> tuple[Results, list[Requirement]]:
    """Attention over D=256, 1000 steps."""
    files = {
        "rollout form": "rollout.onnx",
        "step form, buffer": "step.onnx",
        "step form, prefix": "prefix.onnx",
    }
    results: Results = {}
    for batch in BATCHES:
        strategies = [
            strategy("eager in place", "serving:make_eager", folder=folder, batch=batch),
            *(
                strategy(name, "serving:make_runner", folder=folder, file=file, batch=batch)
                for name, file in files.items()
            ),
        ]
        # Short repetitions need more of them for the fastest to be a steady figure.
        results |= run(
            "serve_rollout",
            {f"B{batch}": strategies},
            baseline="eager in place",
            reference="eager in place",
            rounds=rounds * (8 if batch == 1 else 1),
            tolerance=5e-3,
            peak=False,
            results_file=RESULTS / f"serve_rollout-B{batch}.json",
        )
    lines = []
    for batch in BATCHES:
        figures = results[f"B{batch}"]
        # A user exports the one that suits the batch: the exact prefix for single rows.
        step = "step form, prefix" if batch == 1 else "step form, buffer"
        for slow, required, goal in (("rollout form", 1.5, 2.0), ("eager in place", 1.0, 1.5)):
            value = ratio(figures, slow, step)
            lines.append(Requirement(f"{step}, against {slow}, B{batch}", value, required, goal))
    return results, lines


def writes(folder: str, rounds: int) -> tuple[Results, list[Requirement]]:
    """2000 steps of a cell that reads one slot, behind a short and behind a long memory."""
    names = {length: f"{length} slots" for length in LENGTHS}
    strategies = [
        strategy(name, "serving:make_writes", folder=folder, length=length)
        for length, name in names.items()
    ]
    results = run("serve_write", {"write": strategies}, baseline=names[LENGTHS[0]], rounds=rounds)
    value = ratio(results["write"], names[LENGTHS[1]], names[LENGTHS[0]])
    what = "a write at 100,000 slots against one at 1,000"
    return results, [Requirement(what, value, 1.2, lower_is_better=True)]


def throughput(folder: str, rounds: int) -> tuple[Results, list[Requirement]]:
    """Rows per second against the batch size, 100 steps."""
    batches = (1, 4, 16, 64, 256)
    strategies = [
        strategy(
            f"B{b}", "serving:make_runner", folder=folder, file="step.onnx", batch=b, steps=100
        )
        for b in batches
    ]
    results = run("serve_throughput", {"throughput": strategies}, rounds=rounds, peak=False)
    print("\nrows per second, 100 steps each")
    for batch, figures in zip(batches, results["throughput"].values(), strict=True):
        if figures.best_seconds:
            print(f"B{batch:<4} {batch / figures.best_seconds:10.0f}")
    return results, []


def http(folder: str, rounds: int) -> tuple[Results, list[Requirement]]:
    """What a request costs beyond the runner's own time."""
    groups = {
        f"{steps} steps": [
            strategy(
                name, "serving:make_http", folder=folder, batch=1, steps=steps, service=service
            )
            for name, service in (("runner", False), ("HTTP", True))
        ]
        for steps in (1, 100)
    }
    results = run("serve_http", groups, baseline="runner", rounds=4 * rounds, peak=False)
    for group, figures in results.items():
        times = [figures[name].best_seconds for name in ("HTTP", "runner")]
        if None not in times:
            print(f"HTTP adds {1e3 * (times[0] - times[1]):.2f} ms to a request of {group}")
    return results, []


PARTS = {"rollout": rollouts, "write": writes, "throughput": throughput, "http": http}


def main() -> int:
    parser = argparse.ArgumentParser(description="Serving benchmarks.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    lines: list[Requirement] = []
    with tempfile.TemporaryDirectory() as folder:
        export(Path(folder))
        for part in options.parts or PARTS:
            lines += PARTS[part](folder, options.rounds)[1]
    return judge(lines)


if __name__ == "__main__":
    sys.exit(main())
