import json

import pytest

from memmodel.bench import Measurement
from memmodel.bench import sweep as sweep_module
from memmodel.bench.plot import plot_sweep
from memmodel.bench.sweep import CAT, MEMMODEL, Rollout, sweep, to_json

TINY = Rollout(cell="gru", batch=2, slot=(4,))
PNG = b"\x89PNG\r\n\x1a\n"


def test_a_sweep_as_json_and_picture(tmp_path):
    points = {
        steps: {
            name: Measurement(name, seconds=[0.2, 0.1], peak_bytes=peak * steps)
            for name, peak in ((CAT, 10**6), (MEMMODEL, 0))
        }
        for steps in (3, 6)
    }
    document = json.loads(json.dumps(to_json(TINY, points, {"processor": "any"})))
    assert [(p["steps"], p["name"], p["best_seconds"]) for p in document["points"]] == [
        (3, CAT, 0.1), (3, MEMMODEL, 0.1), (6, CAT, 0.1), (6, MEMMODEL, 0.1),
    ]  # fmt: skip
    assert document["rollout"]["cell"] == "gru"

    plot_sweep(tmp_path / "sweep.png", points, title="a sweep", note="any")
    assert (tmp_path / "sweep.png").read_bytes().startswith(PNG)


def test_a_strategy_that_failed_is_not_tried_at_larger_sizes(monkeypatch, tmp_path):
    tried = []

    def fake(strategies, *, rounds, **_):
        steps = strategies[0].arguments["steps"]
        if rounds:
            tried.append((steps, [one.name for one in strategies]))
        return {
            one.name: Measurement(one.name, error="out of memory")
            if one.name == CAT and steps == 20
            else Measurement(one.name, seconds=[1.0] * rounds, peak_bytes=10**6)
            for one in strategies
        }

    monkeypatch.setattr(sweep_module, "measure", fake)
    points = sweep(TINY, [10, 20, 40])
    assert tried == [(10, [CAT, MEMMODEL]), (20, [CAT, MEMMODEL]), (40, [MEMMODEL])]
    assert points[20][CAT].error == "out of memory"
    assert points[40][CAT].error == "not tried, since it failed at 20 steps"
    assert points[40][MEMMODEL].best_seconds == 1.0

    plot_sweep(tmp_path / "sweep.png", points, title="with a gap")
    assert (tmp_path / "sweep.png").read_bytes().startswith(PNG)


def test_strategies_that_disagree_are_not_timed(monkeypatch):
    def fake(strategies, *, rounds, reference=None, **_):
        assert rounds == 0
        assert reference == CAT
        return {
            CAT: Measurement(CAT),
            MEMMODEL: Measurement(MEMMODEL, error="its outputs deviate", deviation=0.1),
        }

    monkeypatch.setattr(sweep_module, "measure", fake)
    with pytest.raises(RuntimeError, match="memmodel with cell 'gru': its outputs deviate"):
        sweep(TINY, [10])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": []}, r"steps must be different numbers of at least 1, got \(\)"),
        ({"steps": [0, 4]}, r"steps must be .*, got \(0, 4\)"),
        ({"steps": [4, 4]}, r"steps must be .*, got \(4, 4\)"),
        ({"steps": [4], "strategies": ["magic"]}, r"strategies must be among .*, got \('magic',\)"),
        ({"steps": [4], "rounds": 0}, "rounds must be at least 1, got 0"),
    ],
)
def test_bad_arguments_of_a_sweep(arguments, message):
    with pytest.raises(ValueError, match=message):
        sweep(TINY, **arguments)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"slot": ()}, r"slot must hold sizes of at least 1, got \(\)"),
        ({"slot": (4, 0)}, r"slot must hold sizes of at least 1, got \(4, 0\)"),
        ({"start_slots": 0}, "start_slots must be at least 1, got 0"),
        ({"input_width": 0}, "input_width must be at least 1, got 0"),
    ],
)
def test_bad_sizes_of_a_rollout(sizes, message):
    with pytest.raises(ValueError, match=message):
        Rollout(**sizes)
