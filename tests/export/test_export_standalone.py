"""Every format, form and kind of network: the file gives eager's numbers without memmodel."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from memmodel.export import read_metadata, to_onnx, to_pt2, to_torchscript

WRITERS = {
    "onnx": (to_onnx, ".onnx"),
    "torchscript": (to_torchscript, ".pt"),
    "pt2": (to_pt2, ".pt2"),
}
KINDS = ["attention", "attention-inputs-head", "attention-float64", "rnn", "gru", "lstm", "own"]
CASES = [(f, form, kind) for f in WRITERS for form in ("rollout", "step") for kind in KINDS]
SIZES = (4, 2, 11)  # batch, k0, steps: those of no example and of no self-check


@pytest.fixture(scope="module")
def results(tmp_path_factory, make_kind):
    """Exports all cases, runs them all in one process without memmodel."""
    directory = tmp_path_factory.mktemp("artifacts")
    jobs, expected = [], {}
    for format, form, name in CASES:
        kind = make_kind(name)
        write, suffix = WRITERS[format]
        job = f"{format}-{form}-{name}"
        write(kind.network, directory / f"{job}{suffix}", form=form, **kind.examples)
        state = read_metadata(directory / f"{job}{suffix}").state
        jobs.append([job, f"{job}{suffix}", format, form, state, True])
        start, inputs = kind.draw(*SIZES)
        given = {} if inputs is None else {"inputs": inputs.numpy()}
        np.savez(directory / f"{job}.npz", start=start.numpy(), steps=SIZES[2], **given)
        expected[job] = kind.expected(start, SIZES[2], inputs)
    (directory / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("standalone.py")
    run = subprocess.run(
        [sys.executable, "-I", str(script), str(directory)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return directory, expected


class TestEveryArtifact:
    @pytest.mark.parametrize(("format", "form", "kind"), CASES)
    def test_gives_eagers_numbers(self, results, format, form, kind):
        directory, expected = results
        job = f"{format}-{form}-{kind}"
        got = np.load(directory / f"{job}.result.npz")
        assert set(got) == set(expected[job])
        for name, value in expected[job].items():
            tight = value.dtype == torch.float64
            torch.testing.assert_close(
                torch.from_numpy(got[name]),
                value,
                rtol=1e-9 if tight else 1e-4,
                atol=1e-9 if tight else 1e-4,
            )

    @pytest.mark.parametrize(("format", "form", "kind"), CASES)
    def test_describes_itself(self, results, make_kind, format, form, kind):
        directory, expected = results
        job = f"{format}-{form}-{kind}"
        metadata = read_metadata(directory / f"{job}{WRITERS[format][1]}")
        network = make_kind(kind)
        assert (metadata.format, metadata.form) == (format, form)
        assert (metadata.slot_shape, metadata.input_shape) == (network.slot, network.inputs)
        assert metadata.has_output == ("output" in expected[job])
        assert metadata.dtype == str(network.dtype).removeprefix("torch.")
        assert metadata.parity is not None
        assert metadata.parity.max_rel_error <= metadata.parity.tolerance
        assert metadata.fixed == {}
