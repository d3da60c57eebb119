"""Modules that make one slot, the part of a network that is traced."""

from typing import Any

from torch import Tensor, nn

from memmodel.network import MemoryNetwork
from memmodel.ops import slot_write


class PrefixStep(nn.Module):
    """``prefix (B, k, *slot)`` [, ``input``] -> ``slot (B, *slot)`` [, ``output (B, ...)``].

    Args:
        network: the network whose cell makes the slot.
        with_head: apply its head, where it has one.
    """

    def __init__(self, network: MemoryNetwork, *, with_head: bool) -> None:
        super().__init__()
        self.cell = network.cell
        self.head = network.head if with_head else None

    def forward(self, prefix: Tensor, input: Tensor | None = None) -> tuple[Tensor, ...]:
        """Make the next slot."""
        slot = self.cell(prefix) if input is None else self.cell(prefix, input)
        return (slot, *_output(self.head, slot))


class BufferStep(nn.Module):
    """``memory (B, N, *slot)``, ``length (B)`` -> ``memory_out``, ``slot`` [, ``output``].

    Rows may have different lengths: slots from ``length`` on are masked by the cell.

    Args:
        network: a network whose cell has a ``masked`` method.
    """

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__()
        self.cell = network.cell
        self.head = network.head
        self.masked: Any = network.cell.masked

    def forward(
        self, memory: Tensor, length: Tensor, input: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Make the next slot and write it at ``length``."""
        given = () if input is None else (input,)
        slot = self.masked(memory, length, *given)
        return (slot_write(memory, slot.unsqueeze(1), length), slot, *_output(self.head, slot))


class Head(nn.Module):
    """The head alone: ``slots (B, steps, *slot)`` -> ``output (B, steps, ...)``."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, slots: Tensor) -> tuple[Tensor]:
        """Apply the head."""
        return (self.head(slots),)


def _output(head: nn.Module | None, slot: Tensor) -> tuple[Tensor, ...]:
    return () if head is None else (head(slot.unsqueeze(1)).squeeze(1),)
