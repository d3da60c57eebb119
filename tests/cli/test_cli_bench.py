import json

import pytest

from memmodel.bench import Measurement
from memmodel.bench.sweep import CAT, MEMMODEL, Rollout
from memmodel.cli import bench as command_module
from memmodel.cli import main

CELL = """
import torch

class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, prefix):
        return torch.tanh(self.gain * prefix.mean(1))

def make_cell():
    return Cell()

def make_wide():
    return torch.nn.Linear(2, 3)
"""


def bench(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "--device", "cpu", "--batch", "2", "--rounds", "1", *map(str, arguments)])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


@pytest.fixture
def users_directory(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(CELL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_cell_of_the_users_own(capsys, users_directory):
    code, out, err = bench(
        capsys,
        "--cell",
        "mine:make_cell",
        "--slot",
        "3,2",
        "--steps",
        "4",
        "--out",
        "new/figures",
    )
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[:2]] == ["steps", "4"]
    # At this size peak memory may round to nothing, and has no ratio then.
    assert out.splitlines()[1].split()[5].endswith("x")
    document = json.loads((users_directory / "new/figures/bench.json").read_text())
    assert document["rollout"] | {"compile": False} == {
        "cell": "mine:make_cell",
        "batch": 2,
        "slot": [3, 2],
        "start_slots": 1,
        "input_width": None,
        "device": "cpu",
        "compile": False,
    }
    assert all(point["best_seconds"] > 0 for point in document["points"])
    assert document["machine"]["torch"]
    assert (users_directory / "new/figures/bench.png").read_bytes().startswith(b"\x89PNG")


def test_options_reach_the_sweep(capsys, tmp_path, monkeypatch):
    asked = {}

    def fake(rollout, steps, *, report, **options):
        asked.update(options, rollout=rollout, steps=steps)
        return {8: {MEMMODEL: Measurement(MEMMODEL, error="out of memory")}}

    monkeypatch.setattr(command_module, "sweep", fake)
    code, out, err = bench(
        capsys, "--cell", "gru", "--slot", 4, "--steps", 8, "--strategy", MEMMODEL, "--start", 3,
        "--inputs", 5, "--compile", "--timeout", 7, "--out", tmp_path,
    )  # fmt: skip
    assert asked == {
        "rollout": Rollout("gru", 2, (4,), 3, 5, "cpu", compile=True),
        "steps": (8,),
        "strategies": (MEMMODEL,),
        "rounds": 1,
        "timeout": 7.0,
    }
    assert CAT not in out
    # What was found is kept, but a failure of memmodel is a failure of the job.
    assert (tmp_path / "bench.json").exists()
    assert code == 1
    assert "memmodel failed at 8 steps: out of memory" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--steps", "a,b"], 2, "'a,b' is not a list of whole numbers such as 64,128"),
        (["--steps", "4,0"], 2, "steps must be different numbers of at least 1, got (4, 0)"),
        (["--slot", "4", "--batch", "0"], 2, "batch must be at least 1, got 0"),
        (["--cell", "gru", "--slot", "4,4"], 2, "slot must be one width for the gru cell"),
        (["--cell", "absent:make"], 2, "No module named 'absent'"),
        (
            ["--cell", "mine:make_wide", "--slot", "2"],
            2,
            "cell 'mine:make_wide' cannot be used by torch.cat: ",
        ),
    ],
)
def test_errors_are_one_line(capsys, users_directory, arguments, code, message):
    found, out, err = bench(capsys, "--steps", "2", *arguments)
    assert found == code
    assert out == ""
    *_, last = err.splitlines()
    assert message in last
    assert "Traceback" not in err
    assert not (users_directory / "bench.json").exists()


def test_table_says_what_failed():
    fine = Measurement(MEMMODEL, seconds=[0.5, 0.25], peak_bytes=2 * 10**6)
    points = {
        8: {CAT: Measurement(CAT, seconds=[1.0], peak_bytes=10**7), MEMMODEL: fine},
        16: {CAT: Measurement(CAT, error="killed"), MEMMODEL: fine},
    }
    _, first, second, note = command_module.table(points).splitlines()
    assert first.split() == ["8", "1000.00", "10.0", "250.00", "2.0", "4.0x", "5.0x"]
    assert second.split() == ["16", "–", "–", "250.00", "2.0", "–", "–"]
    assert note == "torch.cat at 16 steps: killed"
