"""Cells for the rollout's tests, and the loop that every rollout must agree with."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

D = 4


def cat_loop(
    cell: Callable[..., Tensor], start: Tensor, steps: int, inputs: Tensor | None = None
) -> Tensor:
    memory = start
    for i in range(steps):
        slot = cell(memory) if inputs is None else cell(memory, inputs[:, i])
        memory = torch.cat([memory, slot.unsqueeze(1)], dim=1)
    return memory


class Last(nn.Module):
    """The last output of a recurrent network."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, prefix: Tensor) -> Tensor:
        return self.rnn(prefix)[0][:, -1]


class SelfAttention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, dropout=dropout, batch_first=True)

    def forward(self, prefix: Tensor) -> Tensor:
        return self.attention(prefix[:, -1:], prefix, prefix)[0][:, 0]


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(D, D, 3, padding=1)

    def forward(self, prefix: Tensor) -> Tensor:
        return torch.tanh(self.conv(prefix.transpose(1, 2)).mean(2))


class Mean(nn.Module):
    """A linear layer over the mean slot, plus the step's input."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = layer or nn.Linear(D, D)

    def forward(self, prefix: Tensor, inputs: Tensor | None = None) -> Tensor:
        slot = torch.tanh(self.layer(prefix.mean(1)))
        return slot if inputs is None else slot + inputs


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)
        self.second.weight = self.first.weight

    def forward(self, prefix: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(prefix.mean(1))))


class Masked(nn.Module):
    """Reads a buffer, and leaves one parameter unused."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.unused = nn.Parameter(torch.randn(D, D)), nn.Parameter(torch.randn(D))
        self.register_buffer("mask", torch.ones(D, D).tril())

    def forward(self, prefix: Tensor) -> Tensor:
        return torch.sin(prefix.amax(1) @ (self.weight * self.mask))


class Hiding(nn.Module):
    """Computes with a tensor that it does not register."""

    def __init__(self, hidden: Tensor, *, detach: bool = False) -> None:
        super().__init__()
        self.hidden, self.detach = [hidden], detach

    def forward(self, prefix: Tensor) -> Tensor:
        (hidden,) = self.hidden
        return prefix.mean(1) * (hidden.detach() if self.detach else hidden)


CELLS: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: Last(nn.RNN(D, D, batch_first=True)),
    "GRU": lambda: Last(nn.GRU(D, D, 2, batch_first=True)),
    "LSTM": lambda: Last(nn.LSTM(D, D, batch_first=True)),
    "MultiheadAttention": SelfAttention,
    "Conv1d": Convolution,
    "Linear": Mean,
    "tied weights": Tied,
    "buffer": Masked,
    "weight norm": lambda: Mean(parametrizations.weight_norm(nn.Linear(D, D))),
    "orthogonal": lambda: Mean(parametrizations.orthogonal(nn.Linear(D, D))),
}


def make(name: str, device: torch.device, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return CELLS[name]().to(device=device, dtype=dtype)


def gradients(
    run: Callable[..., Tensor], cell: nn.Module, start: Tensor, steps: int, *inputs: Tensor
) -> list[Tensor | None]:
    """Memory and all gradients of a loss on every slot."""
    cell.zero_grad()
    start = start.detach().clone().requires_grad_()
    inputs = tuple(x.detach().clone().requires_grad_() for x in inputs)
    memory = run(cell, start, steps, *inputs)
    weights = torch.linspace(0.5, 1.5, memory.numel(), device=memory.device)
    (memory * weights.view_as(memory).to(memory.dtype)).square().sum().backward()
    leaves = [start, *inputs, *cell.parameters()]
    return [memory.detach(), *(None if leaf.grad is None else leaf.grad.clone() for leaf in leaves)]


def assert_same(
    actual: list[Tensor | None], expected: list[Tensor | None], tolerance: float = 1e-9
) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)
