"""Every artifact of the exporters gives the network's numbers through the runner."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from memmodel import AttentionCell, MemoryNetwork, RecurrentCell
from memmodel.export import to_onnx, to_pt2, to_torchscript
from memmodel.serve import Runner

STEPS = 6


def attention():
    return MemoryNetwork(AttentionCell(8, heads=2, input_dim=3), nn.Linear(8, 2))


def recurrent():
    return MemoryNetwork(RecurrentCell(nn.GRU(8, 8, batch_first=True)))


ARTIFACTS = {
    "run": lambda net, path: net.save(path),
    "rollout.onnx": lambda net, path: to_onnx(net, path),
    "step.onnx": lambda net, path: to_onnx(net, path, form="step"),
    "prefix.onnx": lambda net, path: to_onnx(net, path, form="step", state="prefix"),
    "rollout.pt": lambda net, path: to_torchscript(net, path),
    "step.pt": lambda net, path: to_torchscript(net, path, form="step"),
    "rollout.pt2": lambda net, path: to_pt2(net, path),
    "step.pt2": lambda net, path: to_pt2(net, path, form="step"),
    "fixed.pt2": lambda net, path: to_pt2(net, path, steps=STEPS),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Network and path of an artifact, each made once."""
    folder = tmp_path_factory.mktemp("artifacts")
    networks, paths = {}, {}

    def make(kind, name):
        if kind not in networks:
            torch.manual_seed(0)
            networks[kind] = {"attention": attention, "recurrent": recurrent}[kind]().eval()
        if (kind, name) not in paths:
            paths[kind, name] = folder / f"{kind}.{name}"
            ARTIFACTS[name](networks[kind], paths[kind, name])
        return networks[kind], paths[kind, name]

    return make


def arguments(kind, batch=5, k0=3, steps=STEPS):
    rng = np.random.default_rng(0)
    start = rng.standard_normal((batch, k0, 8)).astype(np.float32)
    inputs = rng.standard_normal((batch, steps, 3)).astype(np.float32)
    return start, inputs if kind == "attention" else None


def eager(network, start, inputs, steps=STEPS):
    with torch.inference_mode():
        inputs = None if inputs is None else torch.from_numpy(inputs)
        memory = MemoryNetwork(network.cell)(torch.from_numpy(start), steps, inputs)
        results = {"memory": memory.numpy()}
        if network.head is not None:
            results["output"] = network.head(memory[:, start.shape[1] :]).numpy()
    return results


@pytest.mark.parametrize("name", ARTIFACTS)
@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_rollout_and_session_equal_eager(made, kind, name):
    if kind == "recurrent" and name in ("prefix.onnx", "step.pt", "fixed.pt2"):
        return  # the same files as step.onnx and the same code as the others
    network, path = made(kind, name)
    runner = Runner.load(path, "cpu")
    start, inputs = arguments(kind)
    expected = eager(network, start, inputs)
    results = runner.rollout(start, STEPS, inputs)
    assert results.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(results[key], value, atol=1e-5)
        assert results[key].dtype == np.float32
    if name == "fixed.pt2":
        with pytest.raises(ValueError, match="steps is fixed at 6 in this artifact, got 5"):
            runner.rollout(start, 5, inputs[:, :5])
        with pytest.raises(ValueError, match=r"this one fixes \{'steps': 6\}"):
            runner.session(5)
        return
    session = runner.session(5)
    session.feed(start)
    first = session.step(None if inputs is None else inputs[:, 0])
    rest = session.rollout(STEPS - 1, None if inputs is None else inputs[:, 1:])
    np.testing.assert_allclose(session.memory, expected["memory"], atol=1e-5)
    np.testing.assert_allclose(first["slot"], expected["memory"][:, 3], atol=1e-5)
    if "output" in expected:
        np.testing.assert_allclose(rest["output"], expected["output"][:, 1:], atol=1e-5)


def test_an_onnx_file_runs_without_torch(made):
    _, path = made("attention", "step.onnx")
    _, rollout = made("attention", "rollout.onnx")
    program = f"""
import sys
import numpy as np
from memmodel.serve import Runner
for path in ({str(path)!r}, {str(rollout)!r}):
    runner = Runner.load(path)
    runner.rollout(np.zeros((2, 1, 8)), 4, np.zeros((2, 4, 3)))
    session = runner.session(1)
    session.feed(np.zeros((1, 1, 8)))
    session.step(np.zeros((1, 3)))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["run", "step.onnx", "step.pt", "step.pt2", "rollout.pt"])
def test_no_steps_give_an_output_of_no_steps(made, name):
    _, path = made("attention", name)
    start, inputs = arguments("attention", steps=0)
    assert Runner.load(path, "cpu").rollout(start, 0, inputs)["output"].shape == (5, 0, 2)


def test_what_onnx_runtime_cannot_run_is_said(tmp_path):
    net = MemoryNetwork(AttentionCell(4)).bfloat16()
    path = to_onnx(net, tmp_path / "bf16.onnx", form="step").path
    with pytest.raises(RuntimeError, match=r"ONNX Runtime cannot load .*bf16\.onnx on cpu"):
        Runner.load(path, "cpu")


def test_a_native_step_gets_contiguous_tensors(tmp_path):
    torch.manual_seed(0)
    net = MemoryNetwork(AttentionCell(8, input_dim=3)).eval()
    runner = Runner.load(to_pt2(net, tmp_path / "m.pt2", form="step", aot=True).path, "cpu")
    start, inputs = arguments("attention")
    with torch.no_grad():
        expected = net(torch.tensor(start), STEPS, torch.tensor(inputs)).numpy()
    np.testing.assert_allclose(runner.rollout(start, STEPS, inputs)["memory"], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["step.onnx", "prefix.onnx"])
def test_steps_bind_their_tensors_by_address_where_the_host_cannot_reach_them(
    made, monkeypatch, name
):
    """As on a GPU, but on the CPU's memory."""
    from memmodel.serve.formats.onnx_storage import Storage

    _, path = made("attention", name)
    start, inputs = arguments("attention")
    runner = Runner.load(path, "cpu")
    expected = runner.rollout(start, STEPS, inputs)
    monkeypatch.setattr(Storage, "on_host", property(lambda storage: False))
    result = runner.rollout(start, STEPS, inputs)
    for key, value in expected.items():
        np.testing.assert_array_equal(result[key], value)
