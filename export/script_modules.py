"""Modules that TorchScript compiles: the loop around a cell, writing one memory in place.

One class per signature, since a scripted module's arguments and results are fixed.
"""

import torch
from torch import Tensor, nn


def allocate(start: Tensor, steps: int) -> Tensor:
    """A memory that begins with ``start`` and has room for ``steps`` more slots."""
    k0 = start.size(1)
    shape = list(start.shape)
    shape[1] = k0 + steps
    memory = torch.empty(shape, dtype=start.dtype, device=start.device)
    memory.narrow(1, 0, k0).copy_(start)
    return memory


class Rollout(nn.Module):
    """``start, steps -> memory``."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, start: Tensor, steps: int) -> Tensor:
        """Write ``steps`` slots after ``start``."""
        with torch.no_grad():
            k0 = start.size(1)
            memory = allocate(start, steps)
            for i in range(steps):
                memory.select(1, k0 + i).copy_(self.cell(memory.narrow(1, 0, k0 + i)))
            return memory


class RolloutWithInputs(nn.Module):
    """``start, steps, inputs -> memory``."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, start: Tensor, steps: int, inputs: Tensor) -> Tensor:
        """Write ``steps`` slots after ``start``."""
        with torch.no_grad():
            k0 = start.size(1)
            memory = allocate(start, steps)
            for i in range(steps):
                slot = self.cell(memory.narrow(1, 0, k0 + i), inputs.select(1, i))
                memory.select(1, k0 + i).copy_(slot)
            return memory


class WithHead(nn.Module):
    """``start, steps -> memory, output``."""

    def __init__(self, rollout: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.rollout = rollout
        self.head = head

    def forward(self, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Write ``steps`` slots and apply the head to them."""
        with torch.no_grad():
            memory = self.rollout(start, steps)
            return memory, self.head(memory.narrow(1, start.size(1), steps))


class WithInputsAndHead(nn.Module):
    """``start, steps, inputs -> memory, output``."""

    def __init__(self, rollout: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.rollout = rollout
        self.head = head

    def forward(self, start: Tensor, steps: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Write ``steps`` slots and apply the head to them."""
        with torch.no_grad():
            memory = self.rollout(start, steps, inputs)
            return memory, self.head(memory.narrow(1, start.size(1), steps))


class Step(nn.Module):
    """``prefix -> slot``."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, prefix: Tensor) -> Tensor:
        """Make the next slot."""
        with torch.no_grad():
            return self.cell(prefix)


class StepWithInput(nn.Module):
    """``prefix, input -> slot``."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, prefix: Tensor, input: Tensor) -> Tensor:
        """Make the next slot."""
        with torch.no_grad():
            return self.cell(prefix, input)


class StepWithHead(nn.Module):
    """``prefix -> slot, output``."""

    def __init__(self, cell: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.cell = cell
        self.head = head

    def forward(self, prefix: Tensor) -> tuple[Tensor, Tensor]:
        """Make the next slot and the head's output."""
        with torch.no_grad():
            slot = self.cell(prefix)
            return slot, self.head(slot.unsqueeze(1)).squeeze(1)


class StepWithInputAndHead(nn.Module):
    """``prefix, input -> slot, output``."""

    def __init__(self, cell: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.cell = cell
        self.head = head

    def forward(self, prefix: Tensor, input: Tensor) -> tuple[Tensor, Tensor]:
        """Make the next slot and the head's output."""
        with torch.no_grad():
            slot = self.cell(prefix, input)
            return slot, self.head(slot.unsqueeze(1)).squeeze(1)
