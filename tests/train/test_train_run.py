import csv
import json

import numpy as np
import pytest
import torch
from tqdm import tqdm

from memmodel import MemoryNetwork
from memmodel.train import Preprocessing, Series, TrainOptions, train
from memmodel.train.evaluate import mean_scaled_error

SMALL = {"window": 24, "horizon": 6, "periods": (6,), "width": 16, "heads": 2, "epochs": 2}


def waves(length=160):
    """Two noisy seasonal series with trends, of different size and length."""
    rng, t = np.random.default_rng(0), np.arange(length)
    wave = np.sin(2 * np.pi * t / 6) + 0.02 * t + 0.05 * rng.normal(size=length)
    return [Series("small", wave), Series("large", 300 + 50 * wave[20:])]


class StoppedError(Exception):
    pass


def stop_after(saves):
    """A progress bar that raises once it was updated ``saves`` times, like a kill would."""

    class Bar:
        def __init__(self, **arguments):
            self.left = saves

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def set_postfix(self, *arguments, **options):
            pass

        def update(self):
            self.left -= 1
            if self.left < 0:
                raise StoppedError

    return Bar


def test_a_run_learns_and_saves_what_it_says(tmp_path, device):
    options = TrainOptions(**{**SMALL, "epochs": 12}, batch_size=16, lr=1e-2)
    run = train(waves(), options, tmp_path / "run", device=device)
    for name, errors in run.errors.items():
        assert errors["memmodel"] < errors["last value"], name
        assert errors["memmodel"] < errors["seasonal naive"], name
    assert run.history[-1]["training"] < run.history[0]["training"] / 2

    directory = tmp_path / "run"
    assert {path.name for path in directory.iterdir()} == {
        "config.json",
        "model.safetensors",
        "training.json",
        "forecast.csv",
        "latest.npz",
    }
    record = json.loads((directory / "training.json").read_text())
    assert record["heldout_errors"] == run.errors
    assert Preprocessing.from_json(record["preprocessing"]) == run.preprocessing

    # The saved network on the saved start gives the saved forecast.
    latest = np.load(directory / "latest.npz")
    network = MemoryNetwork.load(directory)
    with torch.no_grad():
        output = network(
            torch.from_numpy(latest["start"]), 6, torch.from_numpy(latest["inputs"])
        ).numpy()
    windows = np.stack([one.values[-24:] for one in waves()])
    scale = np.array([one["scale"] for one in record["series"]])
    expected = run.preprocessing.decode(output, windows, scale)
    with (directory / "forecast.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["step", "small", "large"]
    found = np.array(rows, dtype=float)
    np.testing.assert_allclose(found[:, 1:].T, expected, rtol=1e-4)
    np.testing.assert_array_equal(found[:, 0], range(1, 7))


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrent_cells(tmp_path, cell):
    run = train(waves(120), TrainOptions(**SMALL, cell=cell, stride=2), tmp_path)
    assert run.history[-1]["validation"] < run.history[0]["validation"]
    assert list(np.load(tmp_path / "latest.npz")) == ["start"]


def test_the_best_epoch_is_kept(tmp_path):
    noise = Series("noise", np.random.default_rng(0).normal(size=160))  # can only be overfitted
    run = train([noise], TrainOptions(**{**SMALL, "epochs": 8}, lr=0.02, batch_size=16), tmp_path)
    validation = [past["validation"] for past in run.history]
    assert min(validation) != validation[-1], "the case does not test anything"
    found = mean_scaled_error(
        run.network, run.split.validation, run.scales, run.preprocessing, torch.device("cpu")
    )
    assert found == min(validation)


@pytest.mark.parametrize("saves", [1, 2, 3, 5])
def test_an_interrupted_run_ends_bit_identical(tmp_path, saves):
    options = TrainOptions(**SMALL, batch_size=60)
    whole = train(waves(), options, tmp_path / "whole")
    assert len(whole.split.training) == 152  # 3 steps, the last one smaller, in each of 2 epochs
    with pytest.raises(StoppedError):
        train(waves(), options, tmp_path / "part", save_every=0, progress=stop_after(saves))
    torch.rand(7)  # the state of the caller's generator plays no part
    with pytest.raises(FileExistsError, match="unfinished run"):
        train(waves(), options, tmp_path / "part")
    train(waves(), options, tmp_path / "part", resume=True)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "part" / path.name).read_bytes(), path.name


def test_resume_refuses_other_options_data_and_finished_runs(tmp_path):
    options = TrainOptions(**SMALL)
    with pytest.raises(StoppedError):
        train(waves(), options, tmp_path, save_every=0, progress=stop_after(2))
    with pytest.raises(ValueError, match=r"options must be as before: lr was 0.006, now 0.1"):
        train(waves(), TrainOptions(**SMALL, lr=0.1), tmp_path, resume=True)
    with pytest.raises(ValueError, match="the data must be as before"):
        train(waves(159), options, tmp_path, resume=True)
    train(waves(), options, tmp_path, resume=True)
    with pytest.raises(FileExistsError, match="already holds a finished run"):
        train(waves(), options, tmp_path, resume=True)


def test_the_callers_random_numbers_are_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(waves(), TrainOptions(**{**SMALL, "epochs": 1}), tmp_path)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_threads_are_set_for_the_training_alone(tmp_path):
    before = torch.get_num_threads()
    seen = []

    def bar(**arguments):
        seen.append(torch.get_num_threads())
        return tqdm(**arguments)

    train(waves(), TrainOptions(**SMALL), tmp_path, threads=before + 1, progress=bar)
    assert (seen, torch.get_num_threads()) == ([before + 1], before)
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        train(waves(), TrainOptions(**SMALL), tmp_path / "other", threads=0)


def test_divergence_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match=r"the loss became .* try a learning rate below 1e\+37"):
        train(waves(), TrainOptions(**SMALL, lr=1e37), tmp_path)


def test_unknown_device(tmp_path):
    with pytest.raises(ValueError, match="device 'abacus' cannot be used here"):
        train(waves(), TrainOptions(**SMALL), tmp_path, device="abacus")


def test_compiled_training_gives_the_same_run(tmp_path):
    options = {**SMALL, "epochs": 1, "stride": 2}
    eager = train(waves(), TrainOptions(**options), tmp_path / "eager")
    compiled = train(waves(), TrainOptions(**options, compile=True), tmp_path / "compiled")
    for name, errors in eager.errors.items():
        assert compiled.errors[name] == pytest.approx(errors, rel=1e-3)
    # What is saved is the plain network.
    loaded = MemoryNetwork.load(tmp_path / "compiled")
    start = torch.randn(2, 24, 16)
    inputs = torch.randn(2, 6, 5)
    torch.testing.assert_close(loaded(start, 6, inputs), compiled.network(start, 6, inputs))
