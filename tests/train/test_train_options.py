import pytest

from memmodel.train import TrainOptions


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cell": "mlp"}, "cell must be one of attention, rnn, gru, lstm, got 'mlp'"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"batch_size": -3}, "batch_size must be at least 1, got -3"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"lr": float("nan")}, "lr must be positive, got nan"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative, got -1.0"),
        ({"holdout": 1.0}, "holdout must lie between 0 and 1, got 1.0"),
        ({"holdout": 0.6, "validation": 0.4}, "leave nothing to train on"),
        ({"heads": 5}, "heads must divide width=32, got 5"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"periods": (100,)}, "period must be between 2 and the window's 16 points, got 100"),
    ],
)
def test_errors(change, words):
    with pytest.raises(ValueError, match=words):
        TrainOptions(**{"window": 16, "horizon": 4, **change})


def test_differences_name_the_options():
    options = TrainOptions(window=16, horizon=4, periods=(4,))
    assert options.differences(options.to_json()) == []
    other = TrainOptions(window=16, horizon=4, lr=1.0)
    assert other.differences(options.to_json()) == [
        "periods was [4], now []",
        "lr was 0.006, now 1.0",
    ]
