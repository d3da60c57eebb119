import numpy as np

from memmodel.train.baselines import baselines

WINDOW = np.array([[1.0, 2, 3, 11, 12, 13]])


def test_baselines():
    forecasts = baselines(WINDOW, 4, [2, 3])
    assert list(forecasts) == ["last value", "seasonal naive", "seasonal naive + growth"]
    np.testing.assert_array_equal(forecasts["last value"], [[13, 13, 13, 13]])
    np.testing.assert_array_equal(forecasts["seasonal naive"], [[11, 12, 13, 11]])
    np.testing.assert_array_equal(forecasts["seasonal naive + growth"], [[21, 22, 23, 31]])


def test_each_baseline_is_given_where_the_window_allows_it():
    assert list(baselines(WINDOW, 4, [])) == ["last value"]
    assert list(baselines(WINDOW, 4, [4])) == ["last value", "seasonal naive"]
