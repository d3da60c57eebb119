import json
import re
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch

from memmodel.cli import main
from memmodel.demo.flow import Demo
from memmodel.train import Series, TrainOptions

PNG = b"\x89PNG\r\n\x1a\n"


def size_of(png):
    content = png.read_bytes()
    assert content.startswith(PNG)
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:DeprecationWarning")
def test_the_demo_keeps_its_promises(tmp_path):
    """The real one, as a newcomer runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "memmodel", "demo"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "memmodel-demo"
    found = json.loads((out / "demo.json").read_text())
    assert found["finished"]
    assert found["unreached"] == []

    errors = found["heldout_errors"]["co2"]
    assert errors["memmodel"] < 0.5 * errors["seasonal naive"]
    assert errors["memmodel"] < errors["seasonal naive + growth"] < errors["last value"]
    assert "2284 weeks, 59 of them missing and interpolated" in done.stdout
    assert re.search(r"seasonal naive +1\.716 +memmodel is \d+% below it", done.stdout)

    assert set(found["export_errors"]) == {"model.onnx", "model.step.onnx", "model.pt"}
    assert max(found["export_errors"].values()) < 1e-4
    assert found["served_rows"] == 406
    assert found["served_deviation"] < 1e-4
    points = found["costs"]["points"]
    peaks = {(point["name"], point["steps"]): point["peak_bytes"] for point in points}
    assert peaks["torch.cat", 512] > 10 * peaks["memmodel", 512]
    assert str(out) in done.stdout
    for name in ("forecast.png", "cost.png"):
        width, height = size_of(out / name)
        assert width > 1000
        assert height > 500

    # The files give the numbers that were served, without memmodel.
    windows, served = np.load(out / "heldout.npz"), np.load(out / "served.npz")["output"]
    feed = {"start": windows["start"], "inputs": windows["inputs"], "steps": np.array(52)}
    (output,) = onnxruntime.InferenceSession(out / "model.onnx").run(["output"], feed)
    np.testing.assert_allclose(output, served, atol=1e-4)
    script = torch.jit.load(out / "model.pt")
    _, output = script(torch.from_numpy(feed["start"]), 52, torch.from_numpy(feed["inputs"]))
    np.testing.assert_allclose(output.detach().numpy(), served, atol=1e-4)


@pytest.fixture
def unpredictable():
    """A random walk: nothing beats its last value."""
    return [Series("walk", np.random.default_rng(0).normal(size=200).cumsum())]


def test_a_promise_that_is_not_kept_is_said(tmp_path, unpredictable, capsys):
    options = TrainOptions(window=24, horizon=6, periods=(6,), width=16, heads=2, epochs=1)
    demo = Demo(tmp_path / "out", title="a walk", source="numpy", unit="point", echo=print)
    unreached = demo.run(unpredictable, options, steps=[64])
    assert len(unreached) == 1
    assert re.match(r"memmodel's error [\d.]+ is not below that of last value", unreached[0])
    assert re.search(r"last value .* memmodel is \d+% ABOVE it", capsys.readouterr().out)
    assert json.loads((tmp_path / "out" / "demo.json").read_text())["unreached"] == unreached
    # A second demo takes the first one's place.
    assert demo.run(unpredictable, options, steps=[64])


def test_an_unkept_promise_is_exit_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Demo, "run", lambda self, *_, **__: ["this", "that"])
    with pytest.raises(SystemExit) as exit_:
        main(["demo", "--out", str(tmp_path)])
    assert exit_.value.code == 1
    assert capsys.readouterr().err == "memmodel: error: not reached: this; that\n"


def test_what_is_not_a_demo_is_left_alone(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("")
    with pytest.raises(SystemExit) as exit_:
        main(["demo", "--out", str(tmp_path)])
    assert exit_.value.code == 2
    assert "something else than an earlier demo" in capsys.readouterr().err
    assert (tmp_path / "run" / "precious").exists()
