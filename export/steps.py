"""Modules that make one slot, the part of a network that is traced."""

import torch
from torch import Tensor, nn

from memmodel.cells import AttentionCell
from memmodel.export import masked
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
        if type(self.cell) is AttentionCell:
            slot = attend(self.cell, prefix, prefix[:, -1], input, None)
        else:
            slot = self.cell(prefix) if input is None else self.cell(prefix, input)
        return (slot, *_output(self.head, slot))


class BufferStep(nn.Module):
    """``memory (B, N, D)``, ``length (B)`` -> ``memory_out``, ``slot`` [, ``output``].

    Rows may have different lengths: slots from ``length`` on are masked.

    Args:
        network: a network of an :class:`memmodel.AttentionCell`.
        fused: read through the ops of :mod:`memmodel.export.masked`, which are there to be
            translated to ONNX and cannot run.
    """

    def __init__(self, network: MemoryNetwork, *, fused: bool = False) -> None:
        super().__init__()
        self.cell = network.cell
        self.head = network.head
        self.fused = fused

    def forward(
        self, memory: Tensor, length: Tensor, input: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Make the next slot and write it at ``length``."""
        assert isinstance(self.cell, AttentionCell)
        if self.fused:
            z = _join(masked.newest(memory, length), input)
            query = self.cell.query(z) * self.cell.scale
            slot = _make(self.cell, z, masked.masked_read(query, memory, length, self.cell.heads))
        else:
            rows = torch.arange(memory.shape[0], device=memory.device)
            slot = attend(self.cell, memory, memory[rows, length - 1], input, length)
        return (slot_write(memory, slot.unsqueeze(1), length), slot, *_output(self.head, slot))


class Head(nn.Module):
    """The head alone: ``slots (B, steps, *slot)`` -> ``output (B, steps, ...)``."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, slots: Tensor) -> tuple[Tensor]:
        """Apply the head."""
        return (self.head(slots),)


def attend(
    cell: AttentionCell,
    memory: Tensor,
    newest: Tensor,
    input: Tensor | None,
    length: Tensor | None,
) -> Tensor:
    """``cell.forward`` without a copy of the memory, and masked where rows differ in length.

    The plain form moves the heads in front of the slots, for which ONNX Runtime copies the memory.
    Here the query is spread over one row per head instead, zero outside the head's part, so that
    both products take the memory as it lies.

    Args:
        cell: the attention cell.
        memory: ``(B, N, D)``.
        newest: newest slot of each row, ``(B, D)``.
        input: the step's input ``(B, I)``.
        length: number of written slots of each row, ``(B)``; None: all N.
    """
    z = _join(newest, input)
    query = (cell.query(z) * cell.scale).unsqueeze(1)  # (B, 1, D)
    if cell.heads > 1:
        # (H, D), one where column d belongs to head h.
        width = cell.slot_dim // cell.heads
        own = torch.eye(cell.heads, dtype=memory.dtype, device=memory.device)
        own = own.repeat_interleave(width, dim=1)
        query = query * own
    scores = torch.matmul(query, memory.transpose(1, 2))  # (B, H, N)
    if length is not None:
        slots = torch.arange(memory.shape[1], device=memory.device)
        scores = torch.where(slots < length.view(-1, 1, 1), scores, -torch.inf)
    read = torch.matmul(torch.softmax(scores, dim=2), memory)  # (B, H, D)
    read = (read * own).sum(1) if cell.heads > 1 else read.squeeze(1)
    return _make(cell, z, read)


def _join(newest: Tensor, input: Tensor | None) -> Tensor:
    return newest if input is None else torch.cat([newest, input], dim=1)


def _make(cell: AttentionCell, z: Tensor, read: Tensor) -> Tensor:
    """The new slot, from what the query was made of and what it read."""
    return read + cell.output(torch.tanh(cell.controller(torch.cat([z, read], dim=1))))


def _output(head: nn.Module | None, slot: Tensor) -> tuple[Tensor, ...]:
    return () if head is None else (head(slot.unsqueeze(1)).squeeze(1),)
