"""The command line of serving, as a process."""

import subprocess
import sys

import numpy as np
import pytest
from hand_made import save_step


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_step(tmp_path_factory.mktemp("model") / "step.onnx", takes_inputs=False, width=4)


def memmodel(*arguments):
    command = [sys.executable, "-m", "memmodel", "serve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_file_is_served_with_progress(model, tmp_path):
    np.save(tmp_path / "in.npy", np.random.default_rng(0).standard_normal((6, 2, 4)))
    command = ["batch", model, tmp_path / "in.npy", tmp_path / "out.npz", "--steps", 3]
    done = memmodel(*command)
    assert done.returncode == 0, done.stderr
    assert "6 of 6 rows served" in done.stdout
    assert "6/6" in done.stderr
    assert "row/s" in done.stderr
    with np.load(tmp_path / "out.npz") as served:
        assert served["memory"].shape == (6, 5, 4)
    again = memmodel("batch", model, tmp_path / "in.npy", tmp_path / "out.npz", "--steps", 3)
    assert again.returncode == 2
    assert "--force" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["batch", "MODEL", "missing.npy", "out.npy", "--steps", "1"],
            2,
            "missing.npy does not exist",
        ),
        (["batch", "missing.onnx", "in.npy", "out.npy", "--steps", "1"], 2, "missing.onnx"),
        (["batch", "MODEL", "in.npy", "out.txt", "--steps", "1"], 2, "must end in one of"),
        (["batch", "MODEL", "in.csv", "out.npy", "--steps", "1"], 2, "must end in one of"),
        (["batch", "MODEL", "in.npy", "out.npy"], 2, "--steps"),
        (["batch", "MODEL", "in.npy", "out.npy", "--steps", "-1"], 2, "--steps"),
        (["batch", "MODEL", "bad.npz", "out.npz", "--steps", "1"], 2, "bad.npz is no .npz file"),
        (["batch", "MODEL", "wide.npy", "o.npy", "--steps", "1"], 2, "start must have shape"),
        (["batch", "MODEL", "nan.npy", "o.npy", "--steps", "1"], 2, "no row can be served"),
        (["http", "missing.onnx"], 2, "missing.onnx"),
        (["http", "MODEL", "--port", "99999"], 2, "--port"),
    ],
)
def test_errors_are_one_line(model, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    np.save("in.npy", np.zeros((2, 1, 4)))
    np.save("wide.npy", np.zeros((2, 1, 5)))
    np.save("nan.npy", np.full((2, 1, 4), np.nan))
    (tmp_path / "in.csv").write_text("1,2\n")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 cut off")
    done = memmodel(*[model if argument == "MODEL" else argument for argument in arguments])
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, done.stderr
    assert message in lines[-1]
    assert "Traceback" not in done.stderr


def test_the_help_fits_a_terminal():
    for arguments in (["--help"], ["batch", "--help"], ["http", "--help"]):
        done = memmodel(*arguments)
        assert done.returncode == 0
        assert max(map(len, done.stdout.splitlines())) <= 80
