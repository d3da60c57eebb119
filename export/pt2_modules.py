"""Modules that torch.export captures, writing one memory in place."""

import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

from memmodel.network import MemoryNetwork


class DynamicRollout(nn.Module):
    """``start, steps[, inputs] -> memory[, output]``; steps is an int64 scalar tensor.

    The loop's body closes over the memory and writes it in place. Carrying the memory instead would
    copy it at every step.
    """

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__()
        self.cell = network.cell
        self.head = network.head

    def forward(
        self, start: Tensor, steps: Tensor, inputs: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Write ``steps`` slots after ``start``."""
        k0 = start.shape[1]
        count = int(steps.item())
        torch._check(count >= 0)
        memory = _allocate(start, count)
        end = steps + k0

        def go_on(length: Tensor, done: Tensor) -> Tensor:
            return length < end

        def write(length: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
            # Two counters that torch.export cannot relate: from k = k0 + i it would conclude that
            # there is at least one step, or that k0 is at least 2.
            k = int(length.item())
            torch._check(k >= 1)
            torch._check(k < memory.shape[1])
            prefix = memory.narrow(1, 0, k)
            if inputs is None:
                slot = self.cell(prefix)
            else:
                i = int(done.item())
                torch._check(i >= 0)
                torch._check(i < inputs.shape[1])
                slot = self.cell(prefix, inputs.select(1, i))
            memory.select(1, k).copy_(slot)
            return length + 1, done + 1

        # On steps' device: the loop's condition compares them.
        done = torch.zeros_like(steps)
        while_loop(go_on, write, (done + k0, done))
        return _results(memory, k0, count, self.head)


class FixedRollout(nn.Module):
    """``start[, inputs] -> memory[, output]`` with the steps unrolled.

    Args:
        network: the network.
        steps: number of steps.
    """

    def __init__(self, network: MemoryNetwork, steps: int) -> None:
        super().__init__()
        self.cell = network.cell
        self.head = network.head
        self.steps = steps

    def forward(self, start: Tensor, inputs: Tensor | None = None) -> tuple[Tensor, ...]:
        """Write the slots after ``start``."""
        k0 = start.shape[1]
        memory = _allocate(start, self.steps)
        for i in range(self.steps):
            prefix = memory.narrow(1, 0, k0 + i)
            slot = self.cell(prefix) if inputs is None else self.cell(prefix, inputs[:, i])
            # AOTInductor would make a copy into a view a copy of the whole memory.
            index = torch.full((1,), k0 + i, dtype=torch.int64, device=memory.device)
            memory.index_copy_(1, index, slot.to(memory.dtype).unsqueeze(1))
        return _results(memory, k0, self.steps, self.head)


class PrefixStep(nn.Module):
    """``prefix[, input] -> slot[, output]``."""

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__()
        self.cell = network.cell
        self.head = network.head

    def forward(self, prefix: Tensor, input: Tensor | None = None) -> tuple[Tensor, ...]:
        """Make the next slot."""
        slot = self.cell(prefix) if input is None else self.cell(prefix, input)
        if self.head is None:
            return (slot,)
        return slot, self.head(slot.unsqueeze(1)).squeeze(1)


def _allocate(start: Tensor, steps: int) -> Tensor:
    shape = (start.shape[0], steps, *start.shape[2:])
    return torch.cat([start, start.new_zeros(shape)], dim=1)


def _results(memory: Tensor, k0: int, steps: int, head: nn.Module | None) -> tuple[Tensor, ...]:
    return (memory,) if head is None else (memory, head(memory.narrow(1, k0, steps)))
