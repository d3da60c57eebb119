"""Networks to export, and everything about them that a test compares."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import memmodel


class ConvCell(nn.Module):
    """A cell of a user's own: slots (C, W), inputs (W,), control flow on the prefix length."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=1)
        self.gain = nn.Parameter(torch.full((channels, 1), 0.5))

    def forward(self, prefix: Tensor, inputs: Tensor) -> Tensor:
        recent = prefix[:, -1]
        return torch.tanh(self.conv(prefix.mean(dim=1))) + self.gain * recent + inputs.unsqueeze(1)


class FlatHead(nn.Module):
    """Maps slots (B, steps, C, W) to (B, steps, 2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2)

    def forward(self, slots: Tensor) -> Tensor:
        return self.linear(slots.flatten(2))


@dataclass
class Kind:
    """A network and what its exporters need to know about it."""

    network: memmodel.MemoryNetwork
    slot: tuple[int, ...]
    inputs: tuple[int, ...] | None = None
    examples: dict[str, Tensor] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    def draw(self, batch: int, k0: int, steps: int) -> tuple[Tensor, Tensor | None]:
        generator = torch.Generator().manual_seed(batch * 100 + k0 * 10 + steps)
        start = torch.randn(batch, k0, *self.slot, dtype=self.dtype, generator=generator)
        if self.inputs is None:
            return start, None
        shape = (batch, steps, *self.inputs)
        return start, torch.randn(shape, dtype=self.dtype, generator=generator)

    def expected(self, start: Tensor, steps: int, inputs: Tensor | None) -> dict[str, Tensor]:
        """The plain loop, written once more so that it shares nothing with the exporter."""
        network = self.network.eval()
        slots = list(start.unbind(1))
        with torch.no_grad():
            for i in range(steps):
                given = () if inputs is None else (inputs[:, i],)
                slots.append(network.cell(torch.stack(slots, 1), *given))
            memory = torch.stack(slots, 1)
            if network.head is None:
                return {"memory": memory}
            return {"memory": memory, "output": network.head(memory[:, start.shape[1] :])}


def _attention(**options: object) -> Kind:
    return Kind(memmodel.MemoryNetwork(memmodel.AttentionCell(8, **options)), (8,))


def _attention_inputs_head() -> Kind:
    cell = memmodel.AttentionCell(8, heads=2, input_dim=3)
    return Kind(memmodel.MemoryNetwork(cell, nn.Linear(8, 2)), (8,), (3,))


def _double() -> Kind:
    kind = _attention(heads=4)
    kind.network.double()
    return kind


def _recurrent(rnn: nn.RNNBase) -> Kind:
    return Kind(memmodel.MemoryNetwork(memmodel.RecurrentCell(rnn), nn.Linear(6, 1)), (6,))


def _own() -> Kind:
    network = memmodel.MemoryNetwork(ConvCell(3), FlatHead(12))
    examples = {"start": torch.randn(2, 4, 3, 4), "inputs": torch.randn(2, 5, 4)}
    return Kind(network, (3, 4), (4,), examples)


KINDS: dict[str, Callable[[], Kind]] = {
    "attention": _attention,
    "attention-inputs-head": _attention_inputs_head,
    "attention-float64": _double,
    "rnn": lambda: _recurrent(nn.RNN(6, 6, nonlinearity="relu")),
    "gru": lambda: _recurrent(nn.GRU(6, 6, num_layers=2, batch_first=True)),
    "lstm": lambda: _recurrent(nn.LSTM(6, 6, bias=False)),
    "own": _own,
}


@pytest.fixture(scope="session")
def make_kind() -> Callable[[str], Kind]:
    """Makes one of the networks by name, the same at every call."""

    def make(name: str) -> Kind:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return KINDS[name]()

    return make


@pytest.fixture
def network() -> memmodel.MemoryNetwork:
    torch.manual_seed(3)
    return memmodel.MemoryNetwork(memmodel.AttentionCell(8, heads=2), nn.Linear(8, 2))
