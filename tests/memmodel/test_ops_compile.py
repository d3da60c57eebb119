"""The slot-write ops under torch.compile: one graph, right numbers, no copy of the memory."""

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from memmodel import slot_write, slot_write_

N = 1000


@pytest.mark.parametrize("index", [torch.tensor(7), torch.tensor([7, 0, 990])])
def test_in_place_does_not_copy_the_memory(index: Tensor, device: torch.device) -> None:
    def step(memory: Tensor, value: Tensor, index: Tensor) -> Tensor:
        slot_write_(memory, value * 2, index)
        return memory[:, -1] + 1

    memory, value = torch.zeros(3, N, 2, device=device), torch.randn(3, 2, 2, device=device)
    index = index.to(device)
    torch._dynamo.reset()
    result, (code,) = run_and_get_code(torch.compile(step, fullgraph=True), memory, value, index)
    expected = slot_write(torch.zeros_like(memory), value * 2, index)
    assert torch.equal(memory, expected)
    assert torch.equal(result, expected[:, -1] + 1)
    # The graph input itself goes into the op, and nothing of the memory's size is allocated.
    assert "torch.ops.memmodel.slot_write_.default(arg" in code
    allocations = [line for line in code.splitlines() if "= empty_strided" in line]
    assert allocations
    assert not any(f"{N}" in line for line in allocations)


def test_functional_trains(device: torch.device) -> None:
    def loss(memory: Tensor, value: Tensor, index: Tensor) -> Tensor:
        return slot_write(memory.tanh(), value.exp(), index).square().sum()

    memory = torch.randn(3, 6, 2, device=device, requires_grad=True)
    value = torch.randn(3, 2, 2, device=device, requires_grad=True)
    index = torch.tensor([4, 0, 2], device=device)
    torch._dynamo.reset()
    expected = torch.autograd.grad(loss(memory, value, index), (memory, value))
    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    grads = torch.autograd.grad(compiled(memory, value, index), (memory, value))
    torch.testing.assert_close(grads, expected)
