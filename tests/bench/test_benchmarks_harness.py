import json

import pytest

import train
from harness import Requirement, judge, ratio, read, run, strategy
from memmodel.bench import Measurement
from workloads import find


@pytest.mark.parametrize(
    ("requirement", "meets"),
    [
        (Requirement("faster", 2.0, required=1.5), True),
        (Requirement("faster", 1.0, required=1.5), False),
        (Requirement("not measured", None, required=1.5), False),
        (Requirement("smaller", 2.0, required=1.5, lower_is_better=True), False),
        (Requirement("smaller", 1.0, required=1.5, lower_is_better=True), True),
        (Requirement("only a goal", 1.0, goal=1.5), None),
    ],
)
def test_requirements_decide_the_exit_code(requirement, meets, capsys):
    assert requirement.meets(requirement.required) is meets
    assert judge([requirement]) == (1 if meets is False else 0)
    assert ("FAIL" in capsys.readouterr().out) is (meets is False)


def test_ratio_needs_both_figures():
    figures = {
        "slow": Measurement("slow", seconds=[3.0, 2.0]),
        "fast": Measurement("fast", seconds=[0.5, 1.0]),
        "failed": Measurement("failed", error="why"),
    }
    assert ratio(figures, "slow", "fast") == 4.0
    assert ratio(figures, "slow", "failed") is None
    assert ratio(figures, "absent", "fast") is None


def test_run_prints_and_keeps_the_figures(tmp_path, capsys):
    sizes = {"cell": "gru", "batch": 1, "slot": [2], "steps": 2, "compile": False}
    strategies = [
        strategy("cat", "memmodel.bench.training:make_cat", **sizes),
        strategy("bad", "memmodel.bench.training:make_nothing"),
    ]
    path = tmp_path / "results" / "kept.json"
    results = run("t", {"g": strategies}, baseline="cat", rounds=2, results_file=path)
    assert "1.00x" in capsys.readouterr().out
    assert read(path) == results
    assert "make_nothing" in results["g"]["bad"].error
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["machine"]["torch"]
    assert document["date"]


def test_workloads_by_name():
    assert find("W1*2").slots == 2 * find("W1").slots
    assert find("W1/8").slots == find("W1").slots // 8
    for name in ("W9", "W1*", "W1*a", ""):
        with pytest.raises(ValueError, match="workload must be one of W1, "):
            find(name)


def test_a_missing_figure_fails_and_one_that_was_not_tried_does_not():
    failed = Measurement("AttentionCell", error="why")
    cat = Measurement("cat bmm", seconds=[1.0])
    lines = train.requirements({"W1": {"cat bmm": cat, "AttentionCell": failed}})
    assert [line.what for line in lines] == ["AttentionCell vs cat, W1"]
    assert judge(lines) == 1
    quick = Measurement("AttentionCell", seconds=[0.2])
    assert judge(train.requirements({"W1": {"cat bmm": cat, "AttentionCell": quick}})) == 0
