import numpy as np
import pytest
from hand_made import expected, save_step

from memmodel.serve import Runner


@pytest.fixture(params=["buffer", "prefix"])
def runner(request, tmp_path):
    return Runner.load(save_step(tmp_path / "step.onnx", state=request.param), "cpu")


def arguments(batch=3, k0=2, steps=6, width=3, seed=0):
    rng = np.random.default_rng(seed)
    start = rng.standard_normal((batch, k0, width)).astype(np.float32)
    return start, rng.standard_normal((batch, steps, width)).astype(np.float32)


def test_steps_and_rollouts_add_up(runner):
    start, inputs = arguments(steps=150)
    session = runner.session(3)
    session.feed(start)
    first = session.step(inputs[:, 0])
    rest = session.rollout(149, inputs[:, 1:])
    memory = expected(start, 150, inputs)
    np.testing.assert_allclose(first["slot"], memory[:, 2], atol=1e-5)
    np.testing.assert_allclose(first["output"], 2 * memory[:, 2], atol=1e-5)
    np.testing.assert_allclose(rest["slots"], memory[:, 3:], atol=1e-5)
    np.testing.assert_allclose(rest["output"], 2 * memory[:, 3:], atol=1e-5)
    np.testing.assert_allclose(session.memory, memory, atol=1e-5)
    np.testing.assert_array_equal(session.length, [152, 152, 152])


def test_feeding_observed_slots_later(runner):
    start, inputs = arguments()
    session = runner.session(3)
    session.feed(start)
    session.rollout(2, inputs[:, :2])
    observed = np.ones((3, 4, 3), np.float32)
    session.feed(observed)
    session.step(inputs[:, 2])
    memory = np.concatenate([expected(start, 2, inputs), observed], axis=1)
    memory = expected(memory, 1, inputs[:, 2:])
    np.testing.assert_allclose(session.memory, memory, atol=1e-5)


def test_reset_rows_start_anew_while_the_others_go_on(runner):
    start, inputs = arguments()
    session = runner.session(3)
    session.feed(start)
    session.rollout(3, inputs[:, :3])
    session.reset([1])
    np.testing.assert_array_equal(session.length, [5, 0, 5])
    with pytest.raises(RuntimeError, match=r"rows \[1\] are empty"):
        session.step(inputs[:, 3])
    fresh = np.full((1, 1, 3), 0.25, np.float32)
    session.feed(fresh, rows=[1])
    session.rollout(3, inputs[:, 3:])
    others = expected(start, 6, inputs)
    anew = expected(fresh, 3, inputs[1:2, 3:])
    np.testing.assert_array_equal(session.length, [8, 4, 8])
    np.testing.assert_allclose(session.memory[[0, 2]], others[[0, 2]], atol=1e-5)
    np.testing.assert_allclose(session.memory[1, :4], anew[0], atol=1e-5)
    assert not session.memory[1, 4:].any()


def test_rows_of_equal_length_are_stepped_together_again(runner):
    start, inputs = arguments()
    session = runner.session(3)
    session.feed(start)
    session.reset([0, 2])
    session.feed(start[[2, 0]], rows=[2, 0])
    session.step(inputs[:, 0])
    np.testing.assert_allclose(session.memory, expected(start, 1, inputs), atol=1e-5)


def test_a_snapshot_can_be_restored_elsewhere(runner):
    start, inputs = arguments()
    session = runner.session(3)
    session.feed(start)
    session.rollout(3, inputs[:, :3])
    snapshot = session.snapshot()
    expectation = session.rollout(3, inputs[:, 3:])["slots"]
    for other in (session, runner.session(3)):
        other.restore(snapshot)
        np.testing.assert_array_equal(other.rollout(3, inputs[:, 3:])["slots"], expectation)
    session.reset()
    np.testing.assert_array_equal(session.length, [0, 0, 0])


def test_misuse_is_named(runner):
    start, inputs = arguments()
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        runner.session(0)
    session = runner.session(3)
    with pytest.raises(RuntimeError, match=r"rows \[0, 1, 2\] are empty"):
        session.step(inputs[:, 0])
    session.feed(start)
    with pytest.raises(ValueError, match="slots must have 3 rows, got 2"):
        session.feed(start[:2])
    with pytest.raises(ValueError, match=r"slots must have shape \(batch, k, 3\)"):
        session.feed(start[..., :2])
    with pytest.raises(IndexError, match=r"rows must lie in 0..2, got \[3\]"):
        session.reset([3])
    with pytest.raises(ValueError, match=r"rows must be distinct row numbers, got \[1, 1\]"):
        session.reset([1, 1])
    with pytest.raises(ValueError, match=r"inputs must have shape \(3, 1, 3\), got \(3, 1, 2\)"):
        session.step(inputs[:, 0, :2])
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        session.rollout(0)
    with pytest.raises(ValueError, match="snapshot must have 2 rows like the session, got 3"):
        runner.session(2).restore(session.snapshot())


@pytest.mark.parametrize("rows", [[True, False, True], [0.5], ["a"]])
def test_rows_are_numbers_not_a_mask(runner, rows):
    session = runner.session(3)
    session.feed(arguments()[0])
    with pytest.raises(TypeError, match="rows must be row numbers"):
        session.reset(rows)
    assert session.length.tolist() == [2, 2, 2]
    session.reset([])


def test_wrong_types_are_named(runner):
    start, inputs = arguments()
    session = runner.session(3)
    session.feed(start)
    with pytest.raises(ValueError, match="inputs must have shape"):
        session.step(1.0)
    for steps in (2.5, True):
        with pytest.raises(TypeError, match="steps must be an integer"):
            session.rollout(steps, inputs)
    with pytest.raises(TypeError, match="batch must be an integer"):
        runner.session(2.5)
