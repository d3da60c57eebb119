import subprocess
import sys

import numpy as np
import pytest

from memmodel.train import Preprocessing

SMALL = {"window": 6, "horizon": 3, "periods": (3,), "slot_dim": 12, "parts": 2}


def test_slots_hold_value_age_and_phase_in_each_part():
    preprocessing = Preprocessing(**SMALL)
    windows = np.array([[1.0, 2, 3, 4, 5, 6], [0, 0, 0, 7, 7, 7]])
    start, inputs = preprocessing.encode(windows, np.array([2.0, 1.0]))
    assert (start.shape, inputs.shape) == ((2, 6, 12), (2, 3, 5))
    assert start.dtype == inputs.dtype == np.float32
    parts = start.reshape(2, 6, 2, 6)
    np.testing.assert_array_equal(parts[:, :, 0], parts[:, :, 1])
    # The level is the mean of the last period: 5 and 7.
    np.testing.assert_allclose(parts[0, :, 0, 0], (windows[0] - 5) / 2)
    np.testing.assert_allclose(parts[1, :, 0, 0], windows[1] - 7)
    np.testing.assert_allclose(parts[0, :, 0, 1], np.arange(-5, 1) / 6)
    angle = 2 * np.pi * np.arange(-5, 1) / 3
    np.testing.assert_allclose(parts[0, :, 0, 2], np.sin(angle), atol=1e-6)
    np.testing.assert_allclose(parts[0, :, 0, 5], np.cos(2 * angle), atol=1e-6)
    # A step has the phase of the slot one period before it.
    np.testing.assert_allclose(inputs[0, :, 1:], parts[0, -3:, 0, 2:], atol=1e-6)
    np.testing.assert_allclose(inputs[0, :, 0], [1 / 6, 2 / 6, 3 / 6])


def test_decode_inverts_targets():
    preprocessing = Preprocessing(**SMALL)
    rng = np.random.default_rng(0)
    windows, future, scale = rng.normal(300, 9, (4, 6)), rng.normal(300, 9, (4, 3)), np.full(4, 9.0)
    targets = preprocessing.targets(windows, future, scale)
    assert targets.dtype == np.float32
    np.testing.assert_allclose(
        preprocessing.decode(targets[..., None], windows, scale), future, rtol=1e-6
    )


def test_a_trend_does_not_change_what_the_network_sees():
    preprocessing = Preprocessing(**SMALL)
    windows, scale = np.random.default_rng(0).normal(size=(1, 6)), np.ones(1)
    shifted = preprocessing.encode(windows + 1000, scale)[0]
    np.testing.assert_allclose(shifted, preprocessing.encode(windows, scale)[0], atol=1e-6)


def test_without_periods():
    preprocessing = Preprocessing(window=4, horizon=2, slot_dim=2)
    start, inputs = preprocessing.encode(np.array([[1.0, 2, 3, 5]]), np.ones(1))
    np.testing.assert_array_equal(start[0, :, 0], [-4, -3, -2, 0])
    assert inputs.shape == (1, 2, 1)


def test_json_round_trip():
    preprocessing = Preprocessing(**SMALL)
    assert Preprocessing.from_json(preprocessing.to_json()) == preprocessing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"horizon": -1}, "horizon must be at least 1, got -1"),
        ({"periods": (7,)}, "period must be between 2 and the window's 6 points, got 7"),
        ({"periods": (1,)}, "period must be between 2"),
        ({"parts": 5}, "slot_dim=12 must be a multiple of parts=5"),
        ({"parts": 4}, "12 numbers in 4 parts are too few.* need 6 per part"),
    ],
)
def test_errors(change, words):
    with pytest.raises(ValueError, match=words):
        Preprocessing(**{**SMALL, **change})


def test_needs_no_torch():
    script = (
        "import sys; from memmodel.train import Preprocessing; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
