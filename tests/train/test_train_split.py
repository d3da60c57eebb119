import numpy as np
import pytest

from memmodel.train import Series, TrainOptions
from memmodel.train.split import series_scales, split

OPTIONS = TrainOptions(window=4, horizon=2, width=8, heads=1, holdout=0.2, validation=0.1)


def numbered(*lengths):
    """Series whose values are their positions, so that a window shows where it was cut."""
    return [Series(str(i), np.arange(length, dtype=float)) for i, length in enumerate(lengths)]


def test_parts_are_disjoint_in_time_and_complete():
    parts = split(numbered(100, 60), OPTIONS)
    for index, length in enumerate((100, 60)):
        points = []
        for windows in (parts.training, parts.validation, parts.heldout):
            observed, future = windows.take(np.flatnonzero(windows.which == index))
            np.testing.assert_array_equal(observed[:, -1] + 1, future[:, 0])
            np.testing.assert_array_equal(np.diff(observed, axis=1), 1)
            points.append(np.unique(future))
        training, validation, heldout = points
        assert training.min() == 4
        assert training.max() + 1 == validation.min() == round(length * 0.7)
        assert validation.max() + 1 == heldout.min() == round(length * 0.8)
        assert heldout.max() == length - 1
        observed, _ = parts.training.take(np.flatnonzero(parts.training.which == index))
        assert observed.max() < validation.min()


def test_stride_thins_training_windows_only():
    thin = split(numbered(100), TrainOptions(window=4, horizon=2, width=8, heads=1, stride=5))
    assert set(np.diff(thin.training.origin)) == {5}
    assert set(np.diff(thin.validation.origin)) == set(np.diff(thin.heldout.origin)) == {1}


def test_scales_come_from_the_training_part_alone():
    values = np.random.default_rng(0).normal(size=200)
    changed = np.where(np.arange(200) < 140, values, values * 100 + 7)
    series = [Series("a", values), Series("b", changed), Series("c", np.full(200, 5.0))]
    scales = series_scales(series, split(series, OPTIONS), OPTIONS)
    assert scales[0] == scales[1]
    assert scales[2] == 1
    observed, _ = split(series[:1], OPTIONS).training.take(slice(None))
    # Up to the thinning to a thousand windows this is the definition.
    assert scales[0] == pytest.approx(np.sqrt(np.mean((observed - observed[:, -1:]) ** 2)))


@pytest.mark.parametrize(("length", "part"), [(8, "training"), (11, "validation")])
def test_too_short(length, part):
    with pytest.raises(ValueError, match=f"column '1' is too short.* no {part} window of 4 \\+ 2"):
        split(numbered(100, length), OPTIONS)


def test_the_length_asked_for_is_enough():
    options = TrainOptions(window=30, horizon=7, width=8, heads=1)
    with pytest.raises(ValueError, match="too short") as error:
        split(numbered(10), options)
    needed = int(str(error.value).split("about ")[1].split()[0])
    assert len(split(numbered(needed), options).training)
