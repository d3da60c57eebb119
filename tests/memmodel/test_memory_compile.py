"""SlotMemory in torch.compile(fullgraph=True): same numbers and gradients as eager."""

import pytest
import torch
from torch import Tensor

from memmodel import SlotMemory


def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, requires_grad=True), torch.randn(3, requires_grad=True)


def loop(x: Tensor, w: Tensor) -> Tensor:
    memory = SlotMemory((2, 8, 3), dtype=x.dtype, device=x.device)
    memory.append(x)
    for i in range(4):
        memory.append(torch.tanh((memory.read() * w).sum(1)) + memory[-1] + memory[i // 2])
    memory.write(torch.stack([x, x * w], 1), 6)
    memory.write(x + w, 5)
    index = torch.tensor([0, 7, 2, 2], device=x.device)
    return memory.read() * memory[index].sum(1, keepdim=True)


def rewriting(x: Tensor, w: Tensor) -> Tensor:
    memory = SlotMemory((2, 3, 3), dtype=x.dtype, device=x.device, overwrite=True)
    memory.write(torch.stack([x, x * w, x + w], 1), 0)
    for i in range(4):
        h = torch.tanh((memory.read() * w).sum(1))
        memory.write(h, i % 3)
        memory.add(x * i, (i + 1) % 3)
    return memory.read()


@pytest.mark.parametrize("function", [loop, rewriting])
def test_same_numbers_and_gradients(function, device: torch.device) -> None:
    x, w = (t.detach().to(device).requires_grad_() for t in leaves())
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True)
    expected, result = function(x, w), compiled(x, w)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(
        torch.autograd.grad(result.square().sum(), (x, w)),
        torch.autograd.grad(expected.square().sum(), (x, w)),
    )


def test_memory_made_outside() -> None:
    """Empty or constant memories enter a compiled function; it leaves them usable."""
    x, w = leaves()
    memory = SlotMemory((2, 4, 3))
    memory.append(torch.ones(2, 3))

    def step(memory: SlotMemory, x: Tensor, w: Tensor) -> Tensor:
        memory.append(x * w)
        memory.append(memory.read().sum(1))
        return memory.read().square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    loss = compiled(memory, x, w)
    plain = torch.stack([torch.ones(2, 3), x * w, 1 + x * w], 1)
    torch.testing.assert_close(loss, plain.square().sum())
    assert len(memory) == 3
    torch.testing.assert_close(memory.read(), plain)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (x, w)), torch.autograd.grad(plain.square().sum(), (x, w))
    )


def test_memory_with_a_history_is_refused() -> None:
    x, w = leaves()
    memory = SlotMemory((2, 4, 3))
    memory.append(x)
    torch._dynamo.reset()
    compiled = torch.compile(lambda m, w: m.read() * w, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="cannot enter a compiled function"):
        compiled(memory, w)


def test_misuse_is_refused_while_compiling() -> None:
    def twice(x: Tensor) -> Tensor:
        memory = SlotMemory((2, 4, 3))
        memory.append(x)
        memory.write(x, 0)
        return memory.read()

    torch._dynamo.reset()
    with pytest.raises(Exception, match="slot 0 has been written"):
        torch.compile(twice, fullgraph=True, backend="eager")(leaves()[0])


# Dynamo looks at .grad of every input.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_cell_in_an_eager_loop() -> None:
    x, w = leaves()

    def run(cell) -> tuple[Tensor, ...]:
        memory = SlotMemory((2, 6, 3))
        memory.append(x)
        for _ in range(5):
            memory.append(cell(memory.read(), w))
        return torch.autograd.grad(memory.read().square().sum(), (x, w))

    def cell(prefix: Tensor, w: Tensor) -> Tensor:
        return torch.tanh((prefix * w).sum(1))

    torch._dynamo.reset()
    torch.testing.assert_close(run(torch.compile(cell, dynamic=True)), run(cell))
