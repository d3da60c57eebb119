"""Forward and backward of a rollout: memmodel against every other way of doing it.

    python benchmarks/train.py                 # everything that a bound is set for
    python benchmarks/train.py W1 --peers --eager  # all peers, nothing compiled by PyTorch
    python benchmarks/train.py --report        # judge the figures kept in results/

Exits with 1 if a required bound is missed. Workloads are in workloads.py, peers in peers/.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from harness import RESULTS, Requirement, Results, judge, ratio, read, run, strategy
from memmodel.bench import Measurement, Strategy

ATTENTION = ("W1", "W2", "W3", "W4")
GROUPS = (*ATTENTION, "R1", "memory", "compile")

_CAT = {
    "cat bmm": {},
    "cat SDPA": {"sdpa": True},
    "cat bmm compiled": {"compile": True},
    "cat SDPA compiled": {"sdpa": True, "compile": True},
}
_EQUINOX = {
    "Equinox": {"every_step": False},
    "Equinox, checkpoint every step": {"every_step": True},
}


# Short repetitions need more of them for the fastest to be a steady figure.
_MORE_ROUNDS = {"W2": 4}


def main() -> int:
    options = _parse()
    results: Results = {}
    for group in options.groups:
        if options.report:
            results |= read(_file(group, options))
        else:
            results |= _measure(group, options)
    return judge(requirements(results))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--peers", action="store_true", help="also the slower peers")
    parser.add_argument("--eager", action="store_true", help="leave compiled strategies out")
    parser.add_argument("--report", action="store_true", help="judge kept figures")
    parser.add_argument("--device", default="cpu", help="cpu or a CUDA device (PyTorch only)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: 5)")
    options = parser.parse_args()
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {', '.join(sorted(unknown))}; known: {', '.join(GROUPS)}")
    options.groups = options.groups or GROUPS
    return options


def _file(group: str, options: argparse.Namespace) -> Path:
    suffix = "-peers" if options.peers else ""
    if options.device != "cpu":
        suffix += f"-{options.device.replace(':', '')}"
    return RESULTS / f"train-{group}{suffix}.json"


def _measure(group: str, options: argparse.Namespace) -> Results:
    device = options.device
    shared = {"device": device, "results_file": _file(group, options)}
    if group == "memory":
        # Peaks only: the same at twice the slots.
        groups = {"memory": _memory(device)}
        return run("train", groups, rounds=0, **shared)
    if group == "compile":
        return run("train", {"compile": _compile(device)}, rounds=1, peak=False, **shared)
    strategies = _recurrent(device) if group == "R1" else _attention(group, options)
    baseline = strategies[0].name
    # A compiled cell changes little of what torch.cat keeps, and compiling it once more takes long.
    left_out = {name for name, arguments in _CAT.items() if arguments.get("compile")}
    peak = [one.name for one in strategies if one.name not in left_out]
    return run(
        "train",
        {group: strategies},
        baseline=baseline,
        reference=baseline,
        rounds=options.rounds * _MORE_ROUNDS.get(group, 1),
        peak=peak,
        **shared,
    )


def _attention(workload: str, options: argparse.Namespace) -> list[Strategy]:
    device = options.device

    def torch(name: str, factory: str, **arguments: object) -> Strategy:
        return strategy(name, f"peers.{factory}", device=device, workload=workload, **arguments)

    def other(name: str, factory: str, **arguments: object) -> Strategy:
        return strategy(name, f"peers.{factory}", workload=workload, **arguments)

    chosen = [torch(name, "concatenate:make", **arguments) for name, arguments in _CAT.items()]
    if device == "cpu":
        chosen += [other(name, "jax_loop:make_equinox", **a) for name, a in _EQUINOX.items()]
    chosen += [
        torch("AttentionCell", "library:make_fast"),
        torch("AttentionCell compiled", "library:make_fast", compile=True),
        torch("any cell compiled", "library:make_any", compile=True),
    ]
    if options.peers or options.eager:
        chosen.append(torch("any cell", "library:make_any"))
    if options.peers:
        chosen += [
            torch("SlotMemory", "library:make_slot_memory"),
            torch(".data Function", "data_write:make"),
            torch("two passes", "two_pass:make"),
            torch("allow_mutation_on_saved_tensors", "saved_tensor_mutation:make"),
        ]
        if device == "cpu":
            tensor_array = other("TF TensorArray", "tf_array:make")
            chosen += [
                other("JAX scan", "jax_loop:make_scan"),
                replace(tensor_array, small={"workload": f"{workload}/16"}),
            ]
    if options.eager:
        chosen = [one for one in chosen if not one.arguments.get("compile")]
    return chosen


def _recurrent(device: str) -> list[Strategy]:
    return [
        strategy("cat", "peers.concatenate:make", device=device, workload="R1"),
        strategy("RecurrentCell", "peers.library:make_fast", device=device, workload="R1"),
        strategy("any cell", "peers.library:make_any", device=device, workload="R1"),
    ]


def _memory(device: str) -> list[Strategy]:
    factories = {"W1": ("AttentionCell", "make_fast"), "R1": ("any RNN cell", "make_any")}
    return [
        strategy(f"{name} {size}", f"peers.library:{factory}", device=device, workload=size)
        for base, (name, factory) in factories.items()
        for size in (base, f"{base}*2")
    ]


def _compile(device: str) -> list[Strategy]:
    factories = {"AttentionCell": "make_fast", "any cell": "make_any"}
    strategies = [
        strategy(
            f"{name} {steps} steps",
            f"peers.library:{factory}",
            device=device,
            workload=f"C{steps}",
            compile=True,
        )
        for name, factory in factories.items()
        for steps in (32, 4096)
    ]
    uncached = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    return [replace(s, environment={**s.environment, **uncached}) for s in strategies]


def requirements(results: Results) -> list[Requirement]:
    """The bounds on what was measured; ``required`` must hold, ``goal`` is what we are after."""
    lines: list[Requirement] = []
    attention = {"W1": (2.5, 4), "W2": (1.5, 2.5), "W3": (2.5, 4), "W4": (None, 6)}
    any_cell = {"W1": (1.5, 2), "W2": (1.0, 1.3)}
    equinox = {"W1": (2, None), "W2": (None, 1), "W3": (2, None)}
    for group in (name for name in ATTENTION if name in results):
        figures = results[group]
        cat = _fastest(figures, _CAT)
        cell = _fastest(figures, ["AttentionCell", "AttentionCell compiled"])
        lines.append(
            _faster(f"AttentionCell vs cat, {group}", figures, cat, cell, attention[group])
        )
        for name in _EQUINOX if group in equinox and _EQUINOX.keys() & figures.keys() else ():
            bounds = equinox[group] if name == "Equinox" else (None, 1)
            lines.append(_faster(f"AttentionCell vs {name}, {group}", figures, name, cell, bounds))
        if group in any_cell and "any cell compiled" in figures:
            what = f"any cell, compiled, vs cat, {group}"
            lines.append(_faster(what, figures, cat, "any cell compiled", any_cell[group]))
    if "R1" in results:
        what = "RecurrentCell vs cat, R1"
        lines.append(_faster(what, results["R1"], "cat", "RecurrentCell", (20, 30)))
    if "memory" in results:
        lines += _memory_lines(results["memory"])
    if "compile" in results:
        lines += _compile_lines(results["compile"])
    return lines


def _faster(
    what: str,
    figures: Mapping[str, Measurement],
    slow: str | None,
    fast: str | None,
    bounds: tuple[float | None, float | None],
) -> Requirement:
    value = ratio(figures, slow, fast) if slow and fast else None
    return Requirement(what, value, *bounds)


def _fastest(figures: Mapping[str, Measurement], names: Iterable[str]) -> str | None:
    timed = {name: figures[name].best_seconds for name in names if name in figures}
    times = {name: seconds for name, seconds in timed.items() if seconds is not None}
    return min(times, key=times.__getitem__, default=None)


def _memory_lines(figures: Mapping[str, Measurement]) -> list[Requirement]:
    def peak(name: str) -> float | None:
        return figures[name].peak_bytes

    def growth(name: str, base: str) -> float | None:
        once, twice = peak(f"{name} {base}"), peak(f"{name} {base}*2")
        return twice / once if once and twice else None

    w1 = peak("AttentionCell W1")
    return [
        Requirement("peak memory, AttentionCell, W1", w1 and w1 / 1e6, 32, 16, True, "MB"),
        Requirement("… at twice the steps", growth("AttentionCell", "W1"), 2.2, 2.1, True),
        Requirement(
            "peak memory, any nn.RNN cell, R1, at twice the steps",
            growth("any RNN cell", "R1"),
            2.2,
            2.1,
            True,
        ),
    ]


def _compile_lines(figures: Mapping[str, Measurement]) -> list[Requirement]:
    def seconds(name: str) -> float | None:
        row = figures[name]
        return row.first_seconds - row.best_seconds if row.best_seconds else None

    lines = []
    for name in ("AttentionCell", "any cell"):
        short, long = seconds(f"{name} 32 steps"), seconds(f"{name} 4096 steps")
        what = f"compile time, {name}, 4096 steps vs 32"
        if short is not None:
            what += f" ({short:.1f} s)"
        value = long / short if short and long else None
        lines.append(Requirement(what, value, 1.25, 1.1, True))
    return lines


if __name__ == "__main__":
    sys.exit(main())
