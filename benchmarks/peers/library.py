"""memmodel's own strategies on the workloads."""

import torch
from torch import Tensor, nn

import memmodel
from peers.torch_step import PlainRNN, Run, plain_cell, training_step
from workloads import Workload


def make_fast(workload: str, *, compile: bool = False, device: str = "cpu") -> Run:
    """``AttentionCell`` or ``RecurrentCell``, with the rollout of their own."""

    def cell(shapes: Workload) -> nn.Module:
        if shapes.cell == "attention":
            return memmodel.AttentionCell(shapes.width)
        return memmodel.RecurrentCell(PlainRNN(shapes.width).rnn)

    return training_step(workload, cell, lambda module: _network(module, compile), device)


def make_any(
    workload: str, *, sdpa: bool = False, compile: bool = False, device: str = "cpu"
) -> Run:
    """A cell of plain operations, unknown to memmodel, through the generic rollout."""
    return training_step(
        workload,
        lambda shapes: plain_cell(shapes, sdpa=sdpa),
        lambda module: _network(module, compile),
        device,
    )


def make_slot_memory(workload: str, *, sdpa: bool = False, device: str = "cpu") -> Run:
    """A hand-written loop over ``SlotMemory``."""

    def wrap(cell: nn.Module):
        def roll(start: Tensor, steps: int) -> Tensor:
            memory = memmodel.SlotMemory(
                (start.shape[0], steps + 1, start.shape[2]), dtype=start.dtype, device=start.device
            )
            memory.append(start)
            for _ in range(steps):
                memory.append(cell(memory.read()))
            return memory.read()

        return roll

    return training_step(workload, lambda shapes: plain_cell(shapes, sdpa=sdpa), wrap, device)


def _network(cell: nn.Module, compile: bool) -> nn.Module:
    network = memmodel.MemoryNetwork(cell)
    return torch.compile(network, fullgraph=True) if compile else network
