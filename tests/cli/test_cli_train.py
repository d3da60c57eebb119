import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from memmodel.cli import main

SMALL = ["--window", "24", "--horizon", "6", "--period", "6", "--width", "16", "--heads", "2"]
SMALL += ["--epochs", "6", "--batch-size", "8"]


@pytest.fixture
def data(tmp_path):
    """A file with a good series and some that cannot be used."""
    rng, t = np.random.default_rng(0), np.arange(160)
    wave = np.sin(2 * np.pi * t / 6) + 0.05 * rng.normal(size=160)
    rows = [
        f"{x},{300 + 50 * x},{'' if i == 3 else x},{x if i < 20 else ''},x"
        for i, x in enumerate(wave)
    ]
    path = tmp_path / "some data.csv"
    path.write_text("\n".join(["small,large,gap,short,word", *rows]) + "\n")
    return path


def run(capfd, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["train", *map(str, arguments)])
    captured = capfd.readouterr()
    return exit_.value.code, captured.out, captured.err


def test_train(capfd, data, tmp_path):
    code, out, err = run(
        capfd, "--data", data, "--out", tmp_path / "run", "--columns", "small,large", *SMALL,
        "--epochs", 30, "--lr", 0.01,
    )  # fmt: skip
    assert code == 0, err
    assert (tmp_path / "run" / "training.json").is_file()
    assert "training: 100%" in err
    assert "loss=" in err
    lines = out.splitlines()
    assert lines[0] == "Mean absolute error on the held-out tail:"
    assert re.split("  +", lines[1].strip()) == [
        "memmodel", "last value", "seasonal naive", "seasonal naive + growth"
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[2:4]] == ["small", "large"]
    assert lines[4] == "memmodel is the best forecaster for 2 of 2 series"
    assert lines[5] == f"saved in {tmp_path / 'run'}"


def test_missing_values_are_interpolated_and_said_so(capfd, data, tmp_path):
    code, out, err = run(
        capfd, "--data", data, "--out", tmp_path / "run", "--columns", "gap", *SMALL,
        "--missing", "interpolate", "--epochs", 1, "--resume",
    )  # fmt: skip
    assert code == 0, err
    assert out.startswith("gap: interpolated 1 of 160 values\nno checkpoint in ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "column 'word' is not numeric: row 1 holds 'x'"),
        (["--columns", "small,gap"], "column 'gap' lacks 1 of 160 values, the first in row 4"),
        (["--columns", "short"], "column 'short' is too short"),
        (["--columns", "small,no,such"], "no column 'no', 'such'; there are 'small', 'large'"),
        (["--columns", "small", "--heads", "3"], "heads must divide width=16, got 3"),
        (["--columns", "small", "--period", "60"], "period must be between 2 and the window's 24"),
        (["--columns", "small", "--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--columns", "small", "--lr", "0"], "lr must be positive, got 0.0"),
    ],
)
def test_bad_use(capfd, data, tmp_path, arguments, words):
    code, out, err = run(capfd, "--data", data, "--out", tmp_path / "run", *SMALL, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_no_such_file(capfd, tmp_path):
    code, _, err = run(capfd, "--data", tmp_path / "no.csv", "--out", tmp_path / "run")
    assert (code, err) == (2, f"memmodel: error: no such data file: {tmp_path / 'no.csv'}\n")


def test_a_directory_that_cannot_be_written(capfd, data, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run(
        capfd, "--data", data, "--out", tmp_path / "file" / "run", "--columns", "small", *SMALL
    )
    assert code == 2
    assert err.startswith("memmodel: error: Not a directory")
    assert err.count("\n") == 1


def start(arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "memmodel", "train", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_a_new_checkpoint(process, path, old):
    while process.poll() is None:
        if path.exists() and path.stat().st_mtime_ns != old:
            return path.stat().st_mtime_ns
        time.sleep(0.01)
    pytest.fail(f"it ended before it was killed: {process.communicate()}")


def test_a_run_killed_twice_ends_bit_identical(data, tmp_path):
    arguments = ["--data", data, "--columns", "small,large", *SMALL, "--save-every", "0"]
    whole = start([*arguments, "--out", tmp_path / "whole"])
    broken = [*arguments, "--out", tmp_path / "broken"]
    checkpoint, seen = tmp_path / "broken" / "checkpoint.pt", None
    for resume in ([], ["--resume"]):
        process = start([*broken, *resume])
        for _ in range(3):
            seen = wait_for_a_new_checkpoint(process, checkpoint, seen)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (tmp_path / "broken" / "training.json").exists()
    last = start([*broken, "--resume"])
    out, err = last.communicate()
    assert last.returncode == 0, err
    assert "training:   0%|          | 0/" not in err, "it began from the start"
    assert whole.communicate()[0].replace("whole", "broken") == out
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    # A kill in the middle of a write may leave its temporary file, which is hidden.
    found = {p.name for p in (tmp_path / "broken").iterdir() if not p.name.startswith(".")}
    assert found == names
    for name in names:
        ours, theirs = (tmp_path / run / name for run in ("broken", "whole"))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_control_c(data, tmp_path):
    arguments = ["--data", data, "--columns", "small", *SMALL, "--epochs", "1000"]
    process = start([*arguments, "--out", tmp_path / "run", "--save-every", "0"])
    wait_for_a_new_checkpoint(process, tmp_path / "run" / "checkpoint.pt", None)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "memmodel: interrupted"
    assert "Traceback" not in err
