"""No step waits for the device or leaves it: the meta device has no values to read."""

import pytest
import torch
from torch import Tensor, nn

from memmodel import AttentionCell, SlotMemory
from memmodel._rollout.steps import allocate, walk_back, write_slots
from memmodel.cells import (
    attention_backward,
    attention_forward,
    recurrent_backward,
    recurrent_forward,
)
from memmodel.cells.attention_forward import Weights
from memmodel.cells.recurrent_forward import layers_from
from memmodel.cells.recurrent_kinds import kind_named
from memmodel.ops import kernels

META = torch.device("meta")
B, K0, STEPS, D = 3, 2, 70, 8


def start(requires_grad: bool = False) -> Tensor:
    return torch.empty(B, K0, D, device=META, requires_grad=requires_grad)


def test_values_and_other_devices_are_noticed() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        start().sum().item()
    with pytest.raises(RuntimeError, match="device cpu is not on the expected device meta"):
        start() + torch.ones(B, K0, D)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("input_dim", [None, 3])
def test_attention(heads: int, input_dim: int | None) -> None:
    cell = AttentionCell(D, heads=heads, input_dim=input_dim, device=META)
    weights = Weights(*(parameter.detach() for parameter in cell.parameters()))
    inputs = None if input_dim is None else torch.empty(B, STEPS, input_dim, device=META)
    memory = attention_forward.forward(start(), inputs, weights, STEPS, heads, cell.scale)
    grads = attention_backward.backward(
        torch.empty_like(memory), memory, inputs, weights, first=K0, heads=heads, scale=cell.scale
    )
    assert memory.shape == (B, K0 + STEPS, D)
    assert grads.start.device == META
    assert all(grad.device == META for grad in grads.weights)


@pytest.mark.parametrize("module", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent(module: type[nn.RNNBase]) -> None:
    rnn = module(D, D, 2, batch_first=True, device=META)
    kind = kind_named(rnn.mode)
    weights = [parameter.detach() for parameter in rnn.parameters()]
    layers = layers_from(kind, weights, layers=2, bias=True)
    rollout = recurrent_forward.forward(start(), kind, layers, STEPS)
    grads = recurrent_backward.backward(
        torch.empty_like(rollout.memory), rollout, kind, layers, first=K0
    )
    assert rollout.memory.shape == (B, K0 + STEPS, D)
    assert grads.start.device == META


def test_any_cell() -> None:
    cell = nn.Linear(D, D, device=META)
    memory = allocate(start(), STEPS)
    write_slots(lambda prefix: cell(prefix.mean(1)).detach(), memory, K0, None, cast=False)
    rewound: list[int] = []

    def step_gradient(prefix: Tensor, _: object, grad_slot: Tensor, into: tuple[Tensor]) -> None:
        into[0].add_(grad_slot.unsqueeze(1))

    gradient = torch.empty_like(memory)
    grad = walk_back(
        step_gradient, memory, K0, None, gradient, grad_inputs=None, before_step=rewound.append
    )
    assert grad.shape == (B, K0, D)
    assert rewound == [*reversed(range(STEPS))]


@pytest.mark.parametrize("overwrite", [False, True])
def test_slot_memory(overwrite: bool) -> None:
    first = start(requires_grad=True)
    memory = SlotMemory((B, K0 + STEPS, D), device=META, overwrite=overwrite)
    memory.append(first)
    for _ in range(STEPS):
        memory.append(memory.read().mean(1) * first[:, 0])
    if overwrite:
        memory.write(first[:, 0] * 2, 1)
        memory.add(first[:, 1], 3)
    memory.read().sum().backward()
    assert first.grad is not None
    assert first.grad.device == META


def test_slot_write() -> None:
    memory, value = torch.empty(B, 5, D, device=META), torch.empty(B, 1, D, device=META)
    index = torch.empty(B, dtype=torch.long, device=META)
    kernels._write_rows(memory, value, index)
    assert kernels.slots_at(index, 2).device == META
