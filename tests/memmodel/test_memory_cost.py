"""Linear memory, and no O(N) work per read or write, counted operation by operation."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from memmodel import SlotMemory

B, D = 2, 4


class Work(TorchDispatchMode):
    """Counts the elements that operations write, and of these, the newly allocated ones."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []
        self.allocated: Counter[int] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        inputs = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        for out in result if isinstance(result, (tuple, list)) else [result]:
            if not isinstance(out, Tensor):
                continue
            fresh = out.untyped_storage().data_ptr() not in inputs
            if fresh:
                self.allocated[out.untyped_storage().nbytes() // out.element_size()] += 1
            if fresh or func._schema.is_mutable:
                self.written.append(out.numel())
        return result


def slot_chain(memory: SlotMemory, x: Tensor, steps: int) -> Tensor:
    """Only single-slot reads and writes."""
    memory.append(x)
    for i in range(steps):
        memory.append(torch.sin(memory[i] + memory[i // 2]))
    return memory[steps].sum()


def measure(run: Callable[[], None]) -> Work:
    with Work() as work:
        run()
    return work


@pytest.mark.parametrize("steps", [32, 128])
def test_single_slot_reads_and_writes_do_no_work_on_the_memory(steps: int) -> None:
    x = torch.randn(B, D, requires_grad=True)
    slots = steps + 1

    def forward() -> Tensor:
        return slot_chain(SlotMemory((B, slots, D)), x, steps)

    losses: list[Tensor] = []
    ahead = measure(lambda: losses.append(forward()))
    back = measure(lambda: torch.autograd.grad(losses[0], x))
    whole = B * slots * D
    # Forward: the storage, and nothing else of more than a slot.
    assert [n for n in ahead.written if n > B * D] == [whole]
    # Backward: the gradient buffer, allocated and zeroed once.
    assert [n for n in back.written if n > B * D] == [whole]
    # As much again per step, at any size.
    assert sum(ahead.written) + sum(back.written) < 2 * whole + 16 * steps * B * D


def test_rewrites_cost_a_slot_each() -> None:
    x = torch.randn(B, D, requires_grad=True)
    N, steps = 64, 16

    def forward() -> Tensor:
        memory = SlotMemory((B, N, D), overwrite=True)
        memory.write(x.unsqueeze(1).expand(B, N, D), 0)
        for i in range(steps):
            memory.write(torch.sin(memory[i]), i)
            memory.add(memory[i], i + 1)
        return memory[steps].sum()

    losses: list[Tensor] = []
    ahead = measure(lambda: losses.append(forward()))
    back = measure(lambda: torch.autograd.grad(losses[0], x))
    whole = B * N * D
    assert [n for n in ahead.written if n > B * D] == [whole, whole]  # storage and first write
    # The buffer, and what the gradient of `expand` sums up.
    assert back.written.count(whole) <= 2
    assert all(n <= B * D or n == whole for n in back.written)


def kept_by_graph(loop: Callable[[Tensor, Tensor, int], Tensor], steps: int) -> int:
    """Elements of all different storages that the graph keeps for backward."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    x, w = torch.randn(B, D, requires_grad=True), torch.randn(D, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loop(x, w, steps)
    return sum(storages.values())


def attention(prefix: Tensor, w: Tensor) -> Tensor:
    scores = torch.bmm(prefix, w.expand(B, 1, D).transpose(1, 2))
    return torch.bmm(scores.transpose(1, 2), prefix).squeeze(1)


def test_what_the_graph_keeps_is_linear() -> None:
    def ours(x: Tensor, w: Tensor, steps: int) -> Tensor:
        memory = SlotMemory((B, steps + 1, D))
        memory.append(x)
        for _ in range(steps):
            memory.append(attention(memory.read(), w))
        return memory.read()

    def cat(x: Tensor, w: Tensor, steps: int) -> Tensor:
        memory = x.unsqueeze(1)
        for _ in range(steps):
            memory = torch.cat([memory, attention(memory, w).unsqueeze(1)], 1)
        return memory

    # Per step the read saves one score per slot; the prefixes themselves are D times as large.
    steps = 64
    scores = B * steps * (steps + 1) // 2
    assert kept_by_graph(ours, steps) <= 2 * B * (steps + 1) * D + scores + D
    assert kept_by_graph(cat, steps) >= D * scores


def test_inference_makes_no_extra_allocation() -> None:
    x = torch.randn(B, D)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            memory = SlotMemory((B, 33, D))

            def run(memory: SlotMemory = memory) -> None:
                for i in range(32):
                    memory.append(x)
                    memory.read()
                    memory[i]

            assert not measure(run).allocated
