import json

import pytest
from torch import nn

import memmodel
from memmodel.cli import main
from memmodel.train.checkpoint import CHECKPOINT


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("läuft") / "my run"
    memmodel.MemoryNetwork(memmodel.AttentionCell(8), nn.Linear(8, 2)).save(directory)
    return directory


@pytest.fixture
def run(capfd):
    def call(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return exit_.value.code, captured.out, captured.err

    return call


def test_export_reports_and_inspect_shows(run, run_directory, tmp_path):
    out, report = tmp_path / "模型 1.onnx", tmp_path / "report.json"
    code, said, err = run(
        "export", run_directory, out, "--form", "step", "--opset", 20, "--report", report
    )
    assert code == 0, err
    assert "onnx step form (buffer), opset 20" in said
    document = json.loads(report.read_text())
    assert document["files"] == {out.name: out.stat().st_size}
    code, said, err = run("inspect", out)
    assert code == 0, err
    assert "memory float32 (batch, capacity, 8)" in said
    assert "format version 1" in said
    assert max(map(len, said.splitlines()[1:])) <= 130
    code, said, _ = run("inspect", out, "--json")
    assert json.loads(said) == document["metadata"]


def test_state_chooses_how_a_step_takes_the_memory(run, run_directory, tmp_path):
    code, said, err = run(
        "export", run_directory, tmp_path / "m.onnx", "--form", "step", "--state", "prefix"
    )
    assert code == 0, err
    assert "onnx step form (prefix)" in said
    code, _, err = run("export", run_directory, tmp_path / "n.onnx", "--state", "prefix")
    assert code == 2
    assert "--state is for steps: it needs --form step" in err
    code, _, err = run("export", run_directory, tmp_path / "m.pt", "--state", "prefix")
    assert code == 2
    assert "--state does not apply" in err


def test_a_servers_layout_takes_a_capacity_and_no_form(run, run_directory, tmp_path):
    code, _, err = run("export", run_directory, tmp_path, "--to", "triton", "--capacity", 32)
    assert code == 0, err
    assert "dims: [32, 8]" in (tmp_path / "memmodel" / "config.pbtxt").read_text()
    code, _, err = run("export", run_directory, tmp_path, "--to", "triton", "--form", "rollout")
    assert code == 2
    assert "--form does not apply" in err
    code, _, err = run("export", run_directory, tmp_path / "m.onnx", "--capacity", 32)
    assert code == 2
    assert "--capacity does not apply" in err


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_suffix_chooses_the_format(run, run_directory, tmp_path, suffix):
    code, _, err = run("export", run_directory, tmp_path / f"m{suffix}", "--form", "step")
    assert code == 0, err
    code, said, _ = run("inspect", tmp_path / f"m{suffix}")
    assert {".pt": "torchscript", ".pt2": "pt2"}[suffix] in said


def test_existing_file_needs_force(run, run_directory, tmp_path):
    out = tmp_path / "m.pt"
    out.write_bytes(b"old")
    code, _, err = run("export", run_directory, out)
    assert code == 2
    assert err.count("\n") == 1
    assert "--force" in err
    assert out.read_bytes() == b"old"
    code, _, err = run("export", run_directory, out, "--force")
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.bin"], "OUT must end with one of .onnx"),
        (["m.pt", "--opset", 20], "--opset does not apply to this format"),
        (["m.onnx", "--aot"], "--aot does not apply to this format"),
        (["m.onnx", "--opset", 17], "17 is not in the range 18<=x<=24"),
        (["m.pt2", "--aot"], "steps must be given for an AOTInductor rollout"),
    ],
)
def test_bad_use_is_one_line(run, run_directory, tmp_path, arguments, message):
    name, *options = arguments
    code, _, err = run("export", run_directory, tmp_path / name, *options)
    assert code == 2
    assert err.count("\n") == 1
    assert message in err


def test_inspect_says_what_is_wrong(run, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"hello")
    code, _, err = run("inspect", tmp_path / "m.onnx")
    assert code == 2
    assert "is not an ONNX, TorchScript or .pt2 file, or it is truncated" in err
    assert run("inspect", tmp_path / "none.onnx")[0] == 2


def test_unfinished_run_says_how_to_finish_it(run, tmp_path):
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / CHECKPOINT).write_bytes(b"")
    code, _, err = run("export", unfinished, tmp_path / "m.pt")
    assert code == 2
    assert "finish its training with memmodel train --resume" in err


def test_a_report_does_not_replace_the_model(run, run_directory, tmp_path):
    for report in (tmp_path / "m.pt", tmp_path / "missing" / "report.json"):
        code, _, err = run("export", run_directory, tmp_path / "m.pt", "--report", report)
        assert (code, len(err.splitlines())) == (2, 1)
        assert "--report" in err
        assert not (tmp_path / "m.pt").exists()
