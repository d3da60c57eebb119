import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hand_made import expected, save_step

from memmodel.serve import Runner

STATES = ["buffer", "prefix"]


@pytest.fixture(params=STATES)
def runner(request, tmp_path):
    return Runner.load(save_step(tmp_path / "step.onnx", state=request.param), "cpu")


def arguments(batch=3, k0=2, steps=5, width=3, seed=0):
    rng = np.random.default_rng(seed)
    start = rng.standard_normal((batch, k0, width)).astype(np.float32)
    inputs = rng.standard_normal((batch, steps, width)).astype(np.float32)
    return start, steps, inputs


@pytest.mark.parametrize(("batch", "k0", "steps"), [(1, 1, 1), (3, 2, 5), (5, 70, 40), (2, 3, 300)])
def test_rollout_equals_the_arithmetic(runner, batch, k0, steps):
    start, steps, inputs = arguments(batch, k0, steps)
    before = start.copy()
    result = runner.rollout(start, steps, inputs)
    memory = expected(start, steps, inputs)
    np.testing.assert_allclose(result["memory"], memory, atol=1e-5)
    np.testing.assert_allclose(result["output"], 2 * memory[:, k0:], atol=1e-5)
    assert result["memory"].flags.c_contiguous
    assert result["output"].flags.c_contiguous
    np.testing.assert_array_equal(start, before)


def test_a_long_rollout_in_row_blocks(tmp_path):
    """More rows than one block, and a capacity that grows several times."""
    runner = Runner.load(save_step(tmp_path / "step.onnx", width=64), "cpu", threads=1)
    start, steps, inputs = arguments(batch=40, k0=1, steps=300, width=64)
    result = runner.rollout(start, steps, inputs)
    memory = expected(start, steps, inputs)
    np.testing.assert_allclose(result["memory"], memory, atol=1e-4)
    np.testing.assert_allclose(result["output"], 2 * memory[:, 1:], atol=1e-4)


def test_a_row_that_overflows_leaves_the_others_alone(runner):
    """Masking hides no infinity, so no row may see what another left behind."""
    start, steps, inputs = arguments(batch=4, k0=40, steps=60)
    start[1, 3] = np.inf
    start[2, 5] = np.nan
    with np.errstate(invalid="ignore"):
        memory = expected(start, steps, inputs)
    result = runner.rollout(start, steps, inputs)
    np.testing.assert_allclose(result["memory"][[0, 3]], memory[[0, 3]], atol=1e-5)


def test_no_steps_give_the_start_back(runner):
    start, _, _ = arguments()
    result = runner.rollout(start, 0, np.empty((3, 0, 3), np.float32))
    np.testing.assert_array_equal(result["memory"], start)
    assert result["output"].shape == (3, 0, 3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"start": np.zeros((2, 3))}, ValueError, r"start must have shape \(batch, k, 3\)"),
        ({"start": np.zeros((3, 2, 4))}, ValueError, r"got \(3, 2, 4\)"),
        ({"start": np.zeros((3, 0, 3))}, ValueError, "rows of at least one slot"),
        ({"start": np.zeros((0, 2, 3))}, ValueError, "rows of at least one slot"),
        ({"start": [["a"]]}, TypeError, "start must hold numbers"),
        ({"start": np.zeros((3, 2, 3), complex)}, TypeError, "got dtype complex128"),
        ({"steps": -1}, ValueError, "steps must be at least 0, got -1"),
        ({"steps": 2.0}, TypeError, "steps must be an integer, got 2.0"),
        ({"steps": True}, TypeError, "steps must be an integer, got True"),
        ({"inputs": None}, ValueError, "must be given: the cell takes an input per step"),
        ({"inputs": np.zeros((3, 4, 3))}, ValueError, r"inputs must have shape \(3, 5, ...\)"),
        ({"inputs": np.zeros((3, 5, 2))}, ValueError, r"inputs must have shape \(3, 5, 3\)"),
    ],
)
def test_bad_arguments_are_named(runner, changes, error, message):
    start, steps, inputs = arguments()
    with pytest.raises(error, match=message):
        runner.rollout(**({"start": start, "steps": steps, "inputs": inputs} | changes))


def test_integers_and_doubles_are_cast(runner):
    _, steps, inputs = arguments()
    whole = np.ones((3, 2, 3), np.int64)
    result = runner.rollout(whole, steps, inputs.astype(np.float64))
    np.testing.assert_allclose(result["memory"], expected(whole, steps, inputs), atol=1e-5)
    assert result["memory"].dtype == np.float32


def test_loading_says_what_is_wrong(tmp_path):
    with pytest.raises(FileNotFoundError):
        Runner.load(tmp_path / "missing.onnx")
    (tmp_path / "foreign.onnx").write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"foreign\.onnx is not an ONNX"):
        Runner.load(tmp_path / "foreign.onnx")
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        Runner.load(tmp_path)
    path = save_step(tmp_path / "step.onnx")
    with pytest.raises(ValueError, match="device must be 'auto', 'cpu', 'cuda' or 'cuda:N'"):
        Runner.load(path, "tpu")
    with pytest.raises(RuntimeError, match="device 'cuda:99' was asked for"):
        Runner.load(path, "cuda:99")
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        Runner.load(path, threads=0)


def test_one_line_says_where_it_runs(tmp_path, caplog):
    with caplog.at_level("INFO", "memmodel.serve"):
        runner = Runner.load(save_step(tmp_path / "step.onnx"), "cpu")
    assert [r.getMessage() for r in caplog.records] == [
        "step.onnx runs on CPUExecutionProvider (cpu)"
    ]
    assert repr(runner) == "Runner(step.onnx (ONNX, step form, buffer) on cpu)"


def test_threads_share_a_runner(runner):
    def work(seed):
        start, steps, inputs = arguments(seed=seed, steps=30)
        memory = runner.rollout(start, steps, inputs)["memory"]
        return np.abs(memory - expected(start, steps, inputs)).max()

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(work, range(32))) < 1e-5


def test_memory_does_not_grow_with_steps(tmp_path):
    """10,000 steps of a session, in a process of its own: the memory's own bytes and no more."""
    path = save_step(tmp_path / "step.onnx", takes_inputs=False)
    program = f"""
import numpy as np
from memmodel.serve import Runner

def resident():
    status = open("/proc/self/status").read()
    return int(status.split("VmRSS:")[1].split()[0])

session = Runner.load({str(path)!r}, "cpu", threads=1).session(2)
session.feed(np.zeros((2, 1, 3)))
session.rollout(2000)
for _ in range(2000):
    session.step()
before = resident()
for _ in range(10000):
    session.step()
print(resident() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    # 14,000 slots of 24 bytes, doubled and copied while they grow: less than 2 MB.
    assert int(done.stdout) < 2048
