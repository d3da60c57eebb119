import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memmodel.bench import Strategy, measure
from memmodel.bench.process import StrategyProcess

HERE = str(Path(__file__).parent)
MEGABYTE = 10**6


def strategy(label, factory, small=None, **arguments):
    return Strategy(
        label,
        f"bench_strategies:{factory}",
        arguments,
        environment={"PYTHONPATH": HERE},
        small=small,
    )


def test_strategies_take_turns(tmp_path):
    log = tmp_path / "log"
    both = [strategy(name, "logged", path=str(log), name=name) for name in "ab"]
    results = measure(both, rounds=3, warm_up=2, peak=False)
    assert log.read_text().split() == list("aabb" + "ababab")
    assert [len(row.seconds) for row in results.values()] == [3, 3]
    assert results["a"].best_seconds == min(results["a"].seconds)


def test_failures_are_reported_and_the_others_go_on(tmp_path):
    results = measure(
        [
            strategy("load", "raising_at_load"),
            strategy("run", "raising"),
            strategy("exit", "exiting", code=3),
            strategy("killed", "killed"),
            strategy("last word", "complaining"),
            strategy("slow", "sleeping", seconds=30),
            strategy("missing", "nothing_like_this"),
            strategy("fine", "returning", x=1.0),
        ],
        rounds=1,
        timeout=5,
    )
    errors = {name: row.error for name, row in results.items()}
    assert errors["load"] == "LookupError: no such thing"
    assert errors["run"] == "ArithmeticError: it went wrong"
    assert errors["exit"] == "its process exited with code 3"
    assert errors["killed"].startswith("its process was killed (SIGKILL)")
    assert errors["slow"] == "gave no answer within 5 s"
    assert errors["missing"].startswith("AttributeError: ")
    assert "raising_at_load" in results["load"].details
    assert "a last word" in results["last word"].details
    assert errors["fine"] is None
    assert len(results["fine"].seconds) == 1
    assert results["fine"].peak_bytes is not None
    assert not any(row.seconds for name, row in results.items() if name != "fine")


def test_outputs_are_compared_with_the_reference():
    results = measure(
        [
            strategy("reference", "returning", x=[1.0, -2.0], y=0.0),
            strategy("close", "returning", x=[1.0, -2.001], y=0.0),
            strategy("far", "returning", x=[1.0, -2.1], y=0.0),
            strategy("nan", "returning", x=[1.0, float("nan")], y=0.0),
            strategy("shape", "returning", x=[1.0], y=0.0),
            strategy("names", "returning", x=[1.0, -2.0]),
        ],
        rounds=1,
        peak=False,
        reference="reference",
    )
    assert results["reference"].deviation == 0
    assert results["close"].deviation == pytest.approx(5e-4)
    assert results["close"].seconds
    assert "deviate from those of reference by 5.0e-02" in results["far"].error
    assert "deviate" in results["nan"].error
    assert results["shape"].error == "x has shape (1,), the reference's has (2,)"
    assert results["names"].error == "it returned ['x'], the reference returned ['x', 'y']"
    assert not any(results[name].seconds for name in ("far", "nan", "shape", "names"))


def test_nothing_is_timed_unchecked_when_the_reference_fails():
    results = measure(
        [strategy("reference", "raising"), strategy("other", "returning", x=1.0)],
        rounds=1,
        reference="reference",
    )
    assert "it went wrong" in results["other"].error
    assert results["other"].seconds == []


@pytest.mark.skipif(sys.platform != "linux", reason="peak resident size is Linux's")
def test_peak_memory_is_what_one_repetition_needs():
    results = measure(
        [
            strategy("large", "allocating", megabytes=60),
            strategy("small", "allocating", megabytes=1),
            strategy("not asked for", "allocating", megabytes=1),
            # Warmed up at full size it would need nothing more; the warm-up at 10 MB shows it.
            strategy("cached", "allocating", {"megabytes": 10, "cached": True}, megabytes=60),
        ],
        rounds=0,
        peak=["large", "small", "cached"],
    )
    assert results["not asked for"].peak_bytes is None
    assert results["large"].peak_bytes == pytest.approx(60 * MEGABYTE, abs=2 * MEGABYTE)
    assert results["small"].peak_bytes == pytest.approx(1 * MEGABYTE, abs=2 * MEGABYTE)
    assert results["cached"].peak_bytes == pytest.approx(60 * MEGABYTE, abs=2 * MEGABYTE)
    assert results["large"].seconds == []


def test_strategies_may_print():
    results = measure([strategy("talkative", "talkative")], rounds=2, peak=False)
    assert results["talkative"].error is None
    assert len(results["talkative"].seconds) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": -1}, "rounds must not be negative, got -1"),
        ({"warm_up": 0}, "warm_up must be at least 1, got 0"),
        ({"reference": "c"}, "reference must be one of .*, got 'c'"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        measure([strategy("a", "returning"), strategy("b", "returning")], **options)


def test_names_must_be_unique():
    with pytest.raises(ValueError, match="unique names"):
        measure([strategy("a", "returning"), strategy("a", "talkative")])


def test_a_worker_ends_with_a_killed_parent(tmp_path):
    script = (
        "from memmodel.bench import Strategy\n"
        "from memmodel.bench.process import StrategyProcess\n"
        "worker = StrategyProcess(Strategy('s', 'bench_strategies:sleeping', {'seconds': 60}),"
        " timeout=60)\n"
        "worker.load()\n"
        "print(worker.pid, flush=True)\n"
        "worker.run()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": HERE},
    )
    with parent:
        worker = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while _alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Where nobody collects orphans, an ended one stays as a zombie.
    return " Z " not in Path(f"/proc/{pid}/stat").read_text()


def test_a_closed_worker_is_gone():
    with StrategyProcess(strategy("a", "returning", x=1.0), timeout=60) as worker:
        worker.load()
        pid = worker.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
