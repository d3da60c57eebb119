"""Do exported rollouts write the memory in place? Time per step against the size of the memory.

The cell only halves the newest slot, so a step's own work is O(slot) and a copy of the memory would
show. Time per step is the slope between two numbers of steps, which leaves out the one allocation.

    python benchmarks/export_inplace.py [--aot]     # AOTInductor compiles for a minute or more
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from harness import Requirement, judge, run, strategy

BATCH, WIDTH = 1, 64
SLOTS = (100, 20_000)  # the larger memory takes 5 MB
FREE_STEPS = (20, 1020)
FIXED_STEPS = (2, 10)


class Halve(nn.Module):
    """The next slot is half the newest one."""

    def forward(self, prefix: Tensor) -> Tensor:
        return prefix[:, -1] * 0.5


def make(kind: str, slots: int, steps: int):
    torch.manual_seed(0)
    start = torch.randn(BATCH, slots, WIDTH)
    call = _FACTORIES[kind](steps)

    def once():
        with torch.no_grad():
            return {"last": call(start)[:, -1]}

    return once


def _torchscript(steps: int):
    import memmodel

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.pt"
        memmodel.export.to_torchscript(_network(), path, start=torch.randn(4, 3, WIDTH))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            module = torch.jit.load(path)
    return lambda start: module(start, steps)


def _pt2(count: int, **options: object):
    import memmodel

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.pt2"
        memmodel.export.to_pt2(_network(), path, start=torch.randn(4, 3, WIDTH), **options)
        if options:
            package = torch._inductor.aoti_load_package(str(path))
            return lambda start: _first(package(start))
        module = torch.export.load(path).module()
    return lambda start: module(start, torch.tensor(count))[0]


def _concatenate(steps: int):
    cell = Halve()

    def call(memory: Tensor) -> Tensor:
        for _ in range(steps):
            memory = torch.cat([memory, cell(memory)[:, None]], dim=1)
        return memory

    return call


def _first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def _network():
    import memmodel

    return memmodel.MemoryNetwork(Halve())


_FACTORIES = {
    "torchscript": _torchscript,
    "pt2": _pt2,
    "aoti": lambda steps: _pt2(steps, aot=True, steps=steps),
    "cat": _concatenate,
}


def main(kinds: list[str]) -> int:
    groups = {
        f"{kind}, {slots} slots": [
            strategy(f"{n} steps", "export_inplace:make", kind=kind, slots=slots, steps=n)
            for n in (FIXED_STEPS if kind == "aoti" else FREE_STEPS)
        ]
        for kind in kinds
        for slots in SLOTS
    }
    results = run("export_inplace", groups, rounds=9, peak=False)
    slopes = {group: _microseconds_per_step(rows) for group, rows in results.items()}
    for group, slope in slopes.items():
        print(f"{group}: {slope:.1f} µs per step")
    copy = slopes[f"cat, {SLOTS[1]} slots"]
    return judge(
        [
            Requirement(
                f"{kind}: a step of the large memory, of what a copy takes",
                slopes[f"{kind}, {SLOTS[1]} slots"] / copy,
                required=0.25,
                lower_is_better=True,
            )
            for kind in kinds
            if kind != "cat"
        ]
    )


def _microseconds_per_step(rows) -> float:
    (few, short), (many, long) = ((int(name.split()[0]), row) for name, row in rows.items())
    return (long.best_seconds - short.best_seconds) / (many - few) * 1e6


if __name__ == "__main__":
    sys.exit(main(["cat", "torchscript", "pt2", *(["aoti"] if "--aot" in sys.argv else [])]))
