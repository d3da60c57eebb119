"""A cell in the user's own package, from the command line alone."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package, a series, and a trained run."""
    directory = tmp_path_factory.mktemp("own")
    shutil.copy(Path(__file__).with_name("my_cells.py"), directory / "my_cells.py")
    np.save(directory / "series.npy", np.sin(np.arange(120) / 3))
    (directory / "cell.json").write_text('{"gain": 0.9}')
    code, _, err = memmodel(
        directory, "train", "--data", "series.npy", "--out", "run", "--window", 12, "--horizon", 4,
        "--width", 8, "--epochs", 1, "--class", "my_cells:Mine", "--cell-config", "cell.json",
    )  # fmt: skip
    assert code == 0, err
    return directory


def memmodel(directory: Path, *arguments: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "memmodel", *map(str, arguments)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


def test_trained_with_its_configuration(place: Path) -> None:
    config = json.loads((place / "run" / "config.json").read_text())
    assert config["cell"]["class"] == "my_cells.Mine"
    assert config["cell"]["config"] == {"slot_dim": 8, "input_dim": 1, "gain": 0.9}
    options = json.loads((place / "run" / "training.json").read_text())["options"]
    assert options["cell"] == "my_cells:Mine"


def test_inspected(place: Path) -> None:
    code, said, err = memmodel(place, "inspect", "run", "--class", "my_cells:Mine")
    assert code == 0, err
    assert "cell      Mine, slot (8) torch.float32, inputs (1)" in said
    assert "from the exact prefix: no masked()" in said


def test_exported_and_served_like_the_run(place: Path) -> None:
    code, said, err = memmodel(
        place, "export", "run", "model.onnx", "--class", "my_cells:Mine", "--force"
    )
    assert code == 0, err
    assert "onnx rollout form" in said
    served = {}
    for model, more in (("model.onnx", ()), ("run", ("--class", "my_cells:Mine"))):
        out = f"{model}.npz"
        code, _, err = memmodel(
            place, "serve", "batch", model, "run/latest.npz", out, "--steps", 4, "--force", *more
        )
        assert code == 0, err
        served[model] = np.load(place / out)["output"]
    np.testing.assert_allclose(served["model.onnx"], served["run"], atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "pass its class as classes=[Mine] (--class my_cells:Mine)"),
        (["--class", "my_cells:Other"], "my_cells has no Other"),
        (["--class", "my_cells:not_a_class"], "must be a subclass of torch.nn.Module, got 3"),
        (["--class", "nowhere:Mine"], "No module named 'nowhere'"),
        (["--class", "my_cells"], "must read PACKAGE.MODULE:CLASS"),
    ],
)
def test_bad_classes_are_one_line_and_write_nothing(
    place: Path, given: list[str], message: str
) -> None:
    code, _, err = memmodel(place, "export", "run", "bad.onnx", *given)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (place / "bad.onnx").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--class", "my_cells:Lying"], "must take slots of shape (8,), its spec says"),
        (["--class", "my_cells:Mine", "--class", "my_cells:Lying"], "can be given once only"),
        (["--cell-config", "cell.json"], "cell_config is for a class of your own"),
        (["--class", "my_cells:Mine", "--cell-config", "series.npy"], "series.npy: not JSON"),
    ],
)
def test_training_refuses_what_cannot_be_trained(
    place: Path, given: list[str], message: str
) -> None:
    code, _, err = memmodel(
        place, "train", "--data", "series.npy", "--out", "bad", "--window", 12, "--horizon", 4,
        "--width", 8, *given,
    )  # fmt: skip
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (place / "bad").exists()


def test_measured(place: Path) -> None:
    code, said, err = memmodel(
        place, "bench", "--class", "my_cells:Mine", "--slot", 8, "--inputs", 3, "--batch", 2,
        "--steps", 4, "--rounds", 1, "--out", "bench",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads((place / "bench" / "bench.json").read_text())["rollout"]["cell"] == (
        "my_cells:Mine"
    )
    assert "torch.cat ms" in said
