"""Strategies of a training step for any cell: growing the memory with torch.cat, and memmodel.

Each factory returns a callable that does forward and backward once, the loss on the last slot.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from memmodel.cells import AttentionCell, RecurrentCell
from memmodel.network import MemoryNetwork
from memmodel.train.model import own_cell

Run = Callable[[], dict[str, Tensor]]
Roll = Callable[[Tensor, int, Tensor | None], Tensor]

BUILT_IN: dict[str, Callable[[int], nn.Module]] = {
    "attention": AttentionCell,
    "rnn": lambda width: RecurrentCell(nn.RNN(width, width, batch_first=True)),
    "gru": lambda width: RecurrentCell(nn.GRU(width, width, batch_first=True)),
    "lstm": lambda width: RecurrentCell(nn.LSTM(width, width, batch_first=True)),
}


def make_cat(*, compile: bool, **workload: Any) -> Run:
    """What people write today: ``memory = torch.cat([memory, cell(memory)])`` at every step.

    Args:
        compile: compile the cell, for any prefix length.
        workload: arguments of :func:`training_step`.
    """

    def wrap(cell: nn.Module) -> Roll:
        step = torch.compile(cell, dynamic=True) if compile else cell

        def roll(start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
            memory = start
            for i in range(steps):
                slot = step(memory) if inputs is None else step(memory, inputs[:, i])
                memory = torch.cat([memory, slot.unsqueeze(1)], dim=1)
            return memory

        return roll

    return training_step(wrap, **workload)


def make_memmodel(*, compile: bool, **workload: Any) -> Run:
    """The same network as a :class:`memmodel.MemoryNetwork`.

    Args:
        compile: compile the network as one graph.
        workload: arguments of :func:`training_step`.
    """

    def wrap(cell: nn.Module) -> Roll:
        network = MemoryNetwork(cell)
        return torch.compile(network, fullgraph=True) if compile else network

    return training_step(wrap, **workload)


def training_step(
    wrap: Callable[[nn.Module], Roll],
    *,
    cell: str,
    batch: int,
    slot: Sequence[int],
    steps: int,
    start_slots: int = 1,
    input_width: int | None = None,
    cell_config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Run:
    """Prepare one training step; equal arguments give equal weights and data in any process.

    Args:
        wrap: makes the function that rolls a cell out.
        cell: ``"attention"``, ``"rnn"``, ``"gru"``, ``"lstm"``, or ``"package.module:function"``,
            a function without arguments that makes the cell, or a cell's class with
            ``from_config``.
        batch: rows B.
        slot: shape of a slot; one width for the built-in cells.
        steps: slots to write.
        start_slots: slots present before, k0.
        input_width: width I of per-step inputs ``(B, steps, I)``, for cells that take them.
        cell_config: what a cell's own ``from_config`` gets beside ``slot_dim`` and ``input_dim``.
        device: where to run.
        seed: for weights and data.

    Raises:
        ValueError: ``cell`` names nothing, or is built in and ``slot`` is not one width.
    """
    torch.manual_seed(seed)
    module = make_cell(cell, slot, input_width, cell_config or {}).to(device)
    start = torch.randn(batch, start_slots, *slot, device=device, requires_grad=True)
    inputs = None if input_width is None else torch.randn(batch, steps, input_width, device=device)
    leaves = {"start": start} | dict(module.named_parameters())
    roll = wrap(module)

    def run() -> dict[str, Tensor]:
        loss = roll(start, steps, inputs)[:, -1].square().mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return {"loss": loss.detach()} | dict(zip(leaves, gradients, strict=True))

    return run


def make_cell(
    name: str,
    slot: Sequence[int],
    input_width: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Make the cell that ``name`` stands for; see :func:`training_step`."""
    if ":" in name:
        module, _, function = name.partition(":")
        found = attrgetter(function)(import_module(module))
        if not hasattr(found, "from_config"):
            return found()
        if len(slot) != 1:
            raise ValueError(f"slot must be one width for {name}, got {tuple(slot)}")
        return own_cell(found, slot[0], input_width, config or {})
    if name not in BUILT_IN:
        known = ", ".join(sorted(BUILT_IN))
        raise ValueError(f"cell must be one of {known} or 'module:function', got {name!r}")
    if len(slot) != 1:
        raise ValueError(f"slot must be one width for the {name} cell, got {tuple(slot)}")
    if input_width is not None:
        if name != "attention":
            raise ValueError(f"input_width must be None for the {name} cell, got {input_width}")
        return AttentionCell(slot[0], input_dim=input_width)
    return BUILT_IN[name](slot[0])
