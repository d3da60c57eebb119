"""Batch jobs that are killed, run out of disk, or are too large for memory."""

import json
import signal
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest
from hand_made import save_step

from memmodel.serve import Runner, run_batch
from memmodel.serve.batch import partial, run

STEPS, WIDTH, ROWS = 40, 16, 400


@pytest.fixture
def job(tmp_path):
    model = save_step(tmp_path / "step.onnx", takes_inputs=False, width=WIDTH)
    start = np.random.default_rng(0).standard_normal((ROWS, 3, WIDTH)).astype(np.float32)
    start[17, 0, 0] = np.nan
    np.savez(tmp_path / "in.npz", start=start)
    return model, tmp_path / "in.npz"


def serve(model, source, target, **options):
    return run_batch(Runner.load(model, "cpu"), source, target, steps=STEPS, **options)


def small_windows(monkeypatch):
    monkeypatch.setattr("memmodel.serve.batch.plan._WINDOW_BATCHES", 1)


# Slow enough to be killed in the middle, in windows of one batch.
PROGRAM = """
import sys, time
from memmodel.serve import Runner, run_batch
from memmodel.serve.batch import plan
plan._WINDOW_BATCHES = 1
class Slow(Runner):
    def rollout(self, *arguments):
        time.sleep(0.05)
        return super().rollout(*arguments)
model, source, target = sys.argv[1:]
run_batch(Slow.load(model, "cpu"), source, target, steps=40, batch=16)
"""


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
def test_a_killed_job_goes_on_to_the_same_bytes(job, tmp_path, monkeypatch, suffix):
    small_windows(monkeypatch)
    model, source = job
    serve(model, source, tmp_path / f"whole{suffix}", batch=16)
    target = tmp_path / f"out{suffix}"
    finished = 0
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        command = [sys.executable, "-c", PROGRAM, str(model), str(source), str(target)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        partial_directory = tmp_path / f".out{suffix}.partial"
        before = finished
        while finished < before + 3 and process.poll() is None:
            finished = len(list(partial_directory.glob("*.npz")))
            time.sleep(0.005)
        process.send_signal(number)
        assert process.wait() != 0
        assert not target.exists()
    assert 9 <= finished < 25
    served = []
    monkeypatch.setattr(
        "memmodel.serve.batch.run.ENGINES",
        {"local": lambda *a: (served.append(i) or i for i in run_here(*a))},
    )
    serve(model, source, target)  # the batch size is the one the job began with
    assert len(served) <= 25 - finished + 1
    assert target.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    errors = [json.loads(line) for line in run.errors_path(target).read_text().splitlines()]
    assert [error["row"] for error in errors] == [17]
    assert not list(tmp_path.glob(".*partial"))


def run_here(*arguments):
    from memmodel.serve.batch.job import serve_here

    return serve_here(*arguments)


def test_a_full_disk_keeps_what_is_done(job, tmp_path, monkeypatch):
    small_windows(monkeypatch)
    model, source = job
    serve(model, source, tmp_path / "whole.npz", batch=16)
    real, calls = np.savez, []

    def savez(file, **arrays):
        calls.append(1)
        if len(calls) == 5:
            file.write(b"half")
            raise OSError(28, "No space left on device", str(file.name))
        real(file, **arrays)

    monkeypatch.setattr(partial.np, "savez", savez)
    with pytest.raises(OSError, match="No space left on device; 64 of 400 rows are kept"):
        serve(model, source, tmp_path / "out.npz", batch=16)
    assert not (tmp_path / "out.npz").exists()
    serve(model, source, tmp_path / "out.npz", batch=16)
    assert len(calls) == 5 + 21
    assert (tmp_path / "out.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_work_of_another_call_is_not_mixed_in(job, tmp_path, monkeypatch):
    model, source = job
    monkeypatch.setattr(run, "assemble", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        serve(model, source, tmp_path / "out.npz")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"work of another call \(steps was 40, now 41"):
        run_batch(Runner.load(model), source, tmp_path / "out.npz", steps=41)
    report = run_batch(Runner.load(model), source, tmp_path / "out.npz", steps=41, restart=True)
    assert report.failed == 1
    with np.load(tmp_path / "out.npz") as served:
        assert served["memory"].shape == (ROWS, 3 + 41, WIDTH)


def test_two_processes_do_not_write_one_output(job, tmp_path):
    model, source = job
    with (
        closing(partial.Partial(tmp_path / "out.npz")),
        pytest.raises(RuntimeError, match="another process is writing"),
    ):
        serve(model, source, tmp_path / "out.npz")


def test_a_directory_goes_on_after_its_finished_files(tmp_path, monkeypatch):
    model = save_step(tmp_path / "step.onnx", takes_inputs=False, width=WIDTH)
    (tmp_path / "in").mkdir()
    for i in range(3):
        np.savez(tmp_path / "in" / f"{i}.npz", start=np.full((4, 1, WIDTH), i / 7, np.float32))
    serve(model, tmp_path / "in", tmp_path / "whole")
    names = []
    real = run._serve_planned

    def interrupted(runner, source, output, options):
        names.append(source.name)
        if len(names) == 3:
            raise KeyboardInterrupt
        return real(runner, source, output, options)

    monkeypatch.setattr(run, "_serve_planned", interrupted)
    with pytest.raises(KeyboardInterrupt):
        serve(model, tmp_path / "in", tmp_path / "out")
    serve(model, tmp_path / "in", tmp_path / "out")
    assert names == ["0.npz", "1.npz", "2.npz", "2.npz"]
    for i in range(3):
        whole, out = (tmp_path / d / f"{i}.npz" for d in ("whole", "out"))
        assert whole.read_bytes() == out.read_bytes()


def test_a_directory_does_not_keep_results_of_files_that_have_gone(tmp_path, monkeypatch):
    model = save_step(tmp_path / "step.onnx", takes_inputs=False, width=WIDTH)
    (tmp_path / "in").mkdir()
    for i in range(2):
        np.savez(tmp_path / "in" / f"{i}.npz", start=np.full((4, 1, WIDTH), i / 7, np.float32))
    real = run._serve_planned

    def interrupted(runner, source, output, options):
        if source.name == "1.npz":
            raise KeyboardInterrupt
        return real(runner, source, output, options)

    with monkeypatch.context() as patch:
        patch.setattr(run, "_serve_planned", interrupted)
        with pytest.raises(KeyboardInterrupt):
            serve(model, tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / "0.npz").unlink()
    with pytest.raises(ValueError, match=r"holds work of another call \(.*0\.npz"):
        serve(model, tmp_path / "in", tmp_path / "out")
    serve(model, tmp_path / "in", tmp_path / "out", restart=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["1.npz"]


def peak(model, source, target):
    """Peak memory of a job in a process of its own, in MB."""
    program = f"""
import resource
from memmodel.serve import Runner, run_batch
runner = Runner.load({str(model)!r}, "cpu", threads=1)
run_batch(runner, {str(source)!r}, {str(target)!r}, steps=4, batch=256)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet"])
def test_memory_is_bounded_whatever_the_size_of_the_file(tmp_path, suffix):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from safetensors.numpy import save_file

    model = save_step(tmp_path / "step.onnx", takes_inputs=False, width=64)
    peaks = []
    for rows in (10_000, 60_000):  # 20 MB and 123 MB of start, half as much again of results
        start = np.zeros((rows, 8, 64), np.float32)
        source = tmp_path / f"{rows}{suffix}"
        if suffix == ".npy":
            np.save(source, start)
        elif suffix == ".npz":
            np.savez(source, start=start)
        elif suffix == ".safetensors":
            save_file({"start": start}, source)
        else:
            flat = pa.FixedSizeListArray.from_arrays(pa.array(start.reshape(-1)), 8 * 64)
            pq.write_table(pa.table({"start": flat}), source, row_group_size=5000)
        peaks.append(peak(model, source, tmp_path / f"{rows}.out{suffix}"))
    assert peaks[1] < peaks[0] + 40, peaks
