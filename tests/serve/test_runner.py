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
