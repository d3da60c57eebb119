"""SlotMemory: a training loop against torch.cat, and what its calls cost at small sizes.

    python benchmarks/slot_memory.py            # everything
    python benchmarks/slot_memory.py W2 calls   # some of the groups
    python benchmarks/slot_memory.py --profile  # where the time of a call goes

W1 and W2 are the workloads of workloads.py with a cell of plain PyTorch operations, which reads the
whole prefix. "by parts" is the same cell with the newest slot read by itself (from the memory, or,
for cat, kept in a variable): indexing a prefix costs a gradient of the prefix's size. "calls" is a
loop that does nothing but write and read, at B8 D64 N256.
"""

import argparse
import math
import sys
import timeit
from collections.abc import Callable

import torch
from torch import Tensor, nn

from harness import Requirement, Results, judge, ratio, run, strategy
from memmodel import SlotMemory
from memmodel.memory.eager import EagerStore
from memmodel.memory.layout import Layout
from memmodel.memory.region import Region
from peers.torch_step import PlainAttention, plain_cell, training_step

GROUPS = ("W1", "W2", "calls")
B, N, D = 8, 256, 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--profile", action="store_true", help="time the parts of a call")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds (default: 7)")
    options = parser.parse_args()
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {', '.join(sorted(unknown))}; known: {', '.join(GROUPS)}")
    if options.profile:
        profile()
        return 0
    results: Results = {}
    for group in options.groups or GROUPS:
        strategies = _calls() if group == "calls" else _training(group)
        baseline = strategies[0].name
        reference = None if group == "calls" else baseline
        results |= run(
            f"slot_memory-{group}",
            {group: strategies},
            baseline=baseline,
            reference=reference,
            rounds=options.rounds,
            peak=group != "calls",
        )
    return judge(_requirements(results))


def _training(workload: str) -> list:
    peers = {"cat": "peers.concatenate:make", "SlotMemory": "peers.library:make_slot_memory"}
    return [
        *(
            strategy(f"{name} {read}", factory, workload=workload, sdpa=read == "SDPA")
            for read in ("bmm", "SDPA")
            for name, factory in peers.items()
        ),
        strategy("cat bmm by parts", "slot_memory:make_parts", workload=workload, cat=True),
        strategy("SlotMemory bmm by parts", "slot_memory:make_parts", workload=workload, cat=False),
    ]


def _calls() -> list:
    def named(name: str, kind: str, train: bool):
        return strategy(name, "slot_memory:make_calls", kind=kind, train=train)

    return [
        named("indexing, no grad", "index", False),
        named("SlotMemory, no grad", "slot", False),
        named("cat, forward + backward", "cat", True),
        named("SlotMemory, forward + backward", "slot", True),
    ]


def _requirements(results: Results) -> list[Requirement]:
    lines = []
    for workload, bound in (("W1", 1.25), ("W2", 1.0)):
        for read in ("bmm", "SDPA", "bmm by parts"):
            if workload in results:
                value = ratio(results[workload], f"cat {read}", f"SlotMemory {read}")
                lines.append(
                    Requirement(f"{workload}: SlotMemory against cat, {read}", value, bound)
                )
    if "calls" in results:
        steps = 20 * N
        seconds = {name: row.best_seconds for name, row in results["calls"].items()}
        for name, value in seconds.items():
            per_step = None if value is None else value / steps * 1e6
            lines.append(Requirement(f"per step: {name}", per_step, unit="µs"))
    return lines


class _AttentionByParts(PlainAttention):
    """The workloads' cell, given the newest slot beside the prefix."""

    def forward(self, prefix: Tensor, newest: Tensor) -> Tensor:
        query = self.query(newest).unsqueeze(1)
        scores = torch.bmm(query, prefix.transpose(1, 2)) / math.sqrt(prefix.shape[2])
        read = torch.bmm(torch.softmax(scores, dim=2), prefix).squeeze(1)
        hidden = torch.tanh(self.controller(torch.cat([newest, read], dim=1)))
        return read + self.output(hidden)


def make_parts(workload: str, *, cat: bool):
    def by_cat(cell: nn.Module, start: Tensor, steps: int) -> Tensor:
        memory, newest = start, start[:, 0]
        for _ in range(steps):
            newest = cell(memory, newest)
            memory = torch.cat([memory, newest.unsqueeze(1)], dim=1)
        return memory

    def by_slots(cell: nn.Module, start: Tensor, steps: int) -> Tensor:
        memory = SlotMemory((start.shape[0], steps + 1, start.shape[2]), dtype=start.dtype)
        newest = start[:, 0]
        memory.append(newest)
        for _ in range(steps):
            newest = cell(memory.read(), newest)
            memory.append(newest)
        return memory.read()

    roll = by_cat if cat else by_slots
    return training_step(
        workload,
        lambda shapes: _AttentionByParts(shapes.width, sdpa=False),
        lambda cell: lambda start, steps: roll(cell, start, steps),
    )


def make_calls(kind: str, *, train: bool):
    """Write a slot and read the prefix, N times, with nothing in between; 20 times."""
    x = torch.randn(B, D, requires_grad=train)

    def index() -> Tensor:
        memory = torch.empty(B, N, D)
        for i in range(N):
            memory[:, i] = x
            prefix = memory[:, : i + 1]
        return prefix

    def cat() -> Tensor:
        memory = x.unsqueeze(1)
        for _ in range(N - 1):
            memory = torch.cat([memory, x.unsqueeze(1)], dim=1)
        return memory

    def slot() -> Tensor:
        memory = SlotMemory((B, N, D))
        for _ in range(N):
            memory.append(x)
            prefix = memory.read()
        return prefix

    loop = {"index": index, "cat": cat, "slot": slot}[kind]

    def once() -> dict[str, Tensor]:
        for _ in range(20):
            if train:
                (result,) = torch.autograd.grad(loop()[:, -1].sum(), x)
            else:
                with torch.no_grad():
                    result = loop()
        return {"result": result}

    return once


def profile() -> None:
    """Print what each layer of one append and one read of the prefix costs, per step, in µs."""
    torch.set_num_threads(1)
    x, constant = torch.randn(1, 1, requires_grad=True), torch.randn(1, 1)
    layout = Layout((1, N, 1), dim=1, dtype=None, device=None)

    def tensors() -> None:
        memory = torch.empty(1, N, 1)
        for i in range(N):
            memory.select(1, i).copy_(constant)
            memory.narrow(1, 0, i + 1)

    def store(value: Tensor) -> EagerStore:
        memory = EagerStore(layout)
        for i in range(N):
            memory.write(value, Region(1, i, i + 1, True))
            memory.read(Region(1, 0, i + 1, False))
        return memory

    def public(value: Tensor) -> SlotMemory:
        memory = SlotMemory((1, N, 1))
        for _ in range(N):
            memory.append(value)
            memory.read()
        return memory

    ones = torch.ones(1, N, 1)
    rows = {
        "the two tensor operations": tensors,
        "+ in-place store, version check": lambda: store(constant),
        "+ checks of arguments and written slots": lambda: public(constant),
        "the same with grad: + the autograd node": lambda: public(x),
        "+ its backward": lambda: torch.autograd.grad(public(x).read(), x, ones),
    }
    print("µs per step, append + read, B1 N256 D1")
    for name, call in rows.items():
        print(f"{name:42} {_microseconds(call) / N:6.2f}")
    training = training_step("W2", plain_cell, _slot_loop)
    training()
    with torch.profiler.profile() as trace:
        training()
    table = trace.key_averages().table(sort_by="self_cpu_time_total", row_limit=16)
    print("\nforward + backward at W2\n" + table)


def _slot_loop(cell: nn.Module) -> Callable[[Tensor, int], Tensor]:
    def roll(start: Tensor, steps: int) -> Tensor:
        memory = SlotMemory((start.shape[0], steps + 1, start.shape[2]))
        memory.append(start)
        for _ in range(steps):
            memory.append(cell(memory.read()))
        return memory.read()

    return roll


def _microseconds(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=20, repeat=7)) / 20 * 1e6


if __name__ == "__main__":
    sys.exit(main())
