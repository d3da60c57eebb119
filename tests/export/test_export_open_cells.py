"""Steps in place for cells of the user's own: what `masked` brings, and what is refused."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import memmodel
from memmodel import AttentionCell, CellSpec, MemoryNetwork
from memmodel.export import ParityError, to_onnx
from memmodel.serve import Runner
from memmodel.serve.triton import write_repository


class MeanCell(nn.Module):
    """Plain PyTorch all through: the masked form sums what is written."""

    def __init__(self, width: int = 6, input_dim: int = 3) -> None:
        super().__init__()
        self.width, self.input_dim = width, input_dim
        self.layer = nn.Linear(width + input_dim, width)

    def spec(self) -> CellSpec:
        return CellSpec((self.width,), (self.input_dim,))

    def forward(self, prefix: Tensor, inputs: Tensor) -> Tensor:
        return torch.tanh(self.layer(torch.cat([prefix.mean(1), inputs], 1)))

    def masked(self, memory: Tensor, length: Tensor, inputs: Tensor) -> Tensor:
        written = torch.arange(memory.shape[1], device=memory.device) < length[:, None]
        total = torch.where(written[:, :, None], memory, 0.0).sum(1)
        return torch.tanh(self.layer(torch.cat([total / length[:, None], inputs], 1)))


class ReadCell(nn.Module):
    """Reads by the library's own masked attention."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.width, self.layer = width, nn.Linear(width, width)

    def spec(self) -> CellSpec:
        return CellSpec((self.width,))

    def forward(self, prefix: Tensor) -> Tensor:
        weights = torch.softmax(prefix @ self.layer(prefix[:, -1])[:, :, None], dim=1)
        return torch.tanh((weights * prefix).sum(1))

    def masked(self, memory: Tensor, length: Tensor) -> Tensor:
        query = self.layer(memmodel.newest_slot(memory, length))
        return torch.tanh(memmodel.masked_read(query, memory, length))


class Mine(AttentionCell):
    """A bare subclass."""


class Other(AttentionCell):
    """Another forward, so that the inherited mask does not fit."""

    def forward(self, prefix: Tensor, inputs: Tensor | None = None) -> Tensor:
        return torch.tanh(prefix.amax(1))


class TooFar(MeanCell):
    """Its mask is one slot too long."""

    def masked(self, memory: Tensor, length: Tensor, inputs: Tensor) -> Tensor:
        return super().masked(memory, (length + 1).clamp_max(memory.shape[1]), inputs)


class Multiplying(MeanCell):
    """Hides what is not written by a factor of zero, which a NaN survives."""

    def masked(self, memory: Tensor, length: Tensor, inputs: Tensor) -> Tensor:
        written = torch.arange(memory.shape[1], device=memory.device) < length[:, None]
        mean = (memory * written[:, :, None]).sum(1) / length[:, None]
        return torch.tanh(self.layer(torch.cat([mean, inputs], 1)))


class Lying(MeanCell):
    def spec(self) -> CellSpec:
        return CellSpec((self.width + 1,), (self.input_dim,))


NETWORKS = {
    "own": lambda: MemoryNetwork(MeanCell(), nn.Linear(6, 2)),
    "own with the library's read": lambda: MemoryNetwork(ReadCell()),
    "a bare subclass": lambda: MemoryNetwork(Mine(6, heads=2, input_dim=3)),
}


def arguments(network: MemoryNetwork, steps: int) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    takes = network.cell.spec().inputs is not None
    inputs = torch.randn(3, steps, 3, generator=generator) if takes else None
    return torch.randn(3, 2, 6, generator=generator), inputs


@pytest.mark.parametrize("opset", [20, 24])
@pytest.mark.parametrize("name", NETWORKS)
def test_steps_in_place_like_the_network(name: str, opset: int, tmp_path: Path) -> None:
    network = NETWORKS[name]()
    report = to_onnx(network, tmp_path / "m.onnx", form="step", opset=opset)
    assert report.metadata.state == "buffer"
    start, inputs = arguments(network, 9)
    served = Runner.load(tmp_path / "m.onnx").rollout(
        start.numpy(), 9, None if inputs is None else inputs.numpy()
    )
    expected = memmodel.rollout(network.cell, start, 9, inputs).detach()
    np.testing.assert_allclose(served["memory"], expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_rollout_form(name: str, tmp_path: Path) -> None:
    report = to_onnx(NETWORKS[name](), tmp_path / "m.onnx")
    assert report.metadata.parity is not None


@pytest.mark.parametrize("name", NETWORKS)
def test_triton(name: str, tmp_path: Path) -> None:
    model = write_repository(NETWORKS[name](), tmp_path, capacity=16)
    assert "use_same_buffer_for_input_output: true" in (model / "config.pbtxt").read_text()


def test_a_newer_forward_takes_prefixes_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "memmodel"):
        report = to_onnx(MemoryNetwork(Other(6)), tmp_path / "m.onnx", form="step")
    assert report.metadata.state == "prefix"
    assert any("Other has no method masked()" in message for message in caplog.messages)


def test_hooks_take_prefixes(tmp_path: Path) -> None:
    cell = MeanCell()
    cell.register_forward_hook(lambda module, given, slot: 2 * slot)
    report = to_onnx(MemoryNetwork(cell), tmp_path / "m.onnx", form="step")
    assert report.metadata.state == "prefix"


@pytest.mark.parametrize("cell", [TooFar, Multiplying])
def test_a_wrong_mask_is_refused(cell: type[MeanCell], tmp_path: Path) -> None:
    with pytest.raises(ParityError, match=f"{cell.__name__}.masked makes another slot than"):
        to_onnx(MemoryNetwork(cell()), tmp_path / "m.onnx", form="step")
    assert not [*tmp_path.iterdir()]


def test_a_lying_spec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Lying\.spec\(\) tells prefix .*, but the cell fails"):
        to_onnx(MemoryNetwork(Lying()), tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]
