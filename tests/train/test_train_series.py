import numpy as np
import pytest

from memmodel.train.series import Series, fingerprint, load_series

NAN = np.nan


@pytest.fixture
def path(tmp_path):
    np.savez(
        tmp_path / "x.npz",
        whole=np.arange(6.0),
        gaps=np.array([NAN, 1.0, NAN, NAN, 4.0, 6.0, NAN]),
        late=np.array([NAN, NAN, 2.0, 3.0]),
        none=np.array([NAN, NAN]),
        inf=np.array([1.0, np.inf]),
    )
    return tmp_path / "x.npz"


def test_ends_are_trimmed_and_gaps_interpolated(path):
    gaps, late = load_series(path, columns=["gaps", "late"], missing="interpolate")
    np.testing.assert_array_equal(gaps.values, [1, 2, 3, 4, 6])
    assert (gaps.name, gaps.filled) == ("gaps", 2)
    np.testing.assert_array_equal(late.values, [2, 3])
    assert late.filled == 0


def test_missing_values_are_an_error_that_names_them(path):
    with pytest.raises(ValueError, match="column 'gaps' lacks 2 of 5 values, the first in row 3"):
        load_series(path, columns=["whole", "gaps"])


def test_values_that_cannot_be_used(path):
    with pytest.raises(ValueError, match="column 'none' holds no value"):
        load_series(path, columns=["none"], missing="interpolate")
    with pytest.raises(ValueError, match="column 'inf' holds an infinite value in row 2"):
        load_series(path, columns=["inf"], missing="interpolate")
    with pytest.raises(ValueError, match="missing must be one of error, interpolate, got 'zero'"):
        load_series(path, missing="zero")


def test_a_file_of_nothing_but_times(tmp_path):
    (tmp_path / "x.csv").write_text("t\n2020-01-01\n2020-01-02\n")
    with pytest.raises(ValueError, match="there is no column of numbers"):
        load_series(tmp_path / "x.csv")


def test_fingerprint_tells_names_values_and_bounds_apart():
    def of(**series):
        return fingerprint([Series(name, np.array(values)) for name, values in series.items()])

    base = of(a=[1.0, 2.0], b=[3.0])
    assert base == of(a=[1.0, 2.0], b=[3.0])
    others = [of(a=[1.0], b=[2.0, 3.0]), of(a=[1.0, 2.0], c=[3.0]), of(a=[1.0, 2.5], b=[3.0])]
    assert len({base, *others}) == 4
