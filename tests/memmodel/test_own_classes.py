"""Networks of the user's own classes, rebuilt from their directory."""

import json
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from memmodel import AttentionCell, MemoryNetwork

OLD = Path(__file__).parent / "format_1"  # saved by the release before classes could be handed in


class Gated(nn.Module):
    """A cell with a configuration."""

    def __init__(self, width: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.width, self.scale = width, scale
        self.layer = nn.Linear(width, width)

    def config(self) -> dict[str, Any]:
        return {"width": self.width, "scale": self.scale}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(config["width"], scale=config["scale"])

    def forward(self, prefix: Tensor) -> Tensor:
        return torch.tanh(self.layer(prefix.mean(1))) * self.scale


class Readout(nn.Module):
    """A head that its constructor makes without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, slots: Tensor) -> Tensor:
        return self.layer(slots)


class Attentive(AttentionCell):
    """A bare subclass."""


class Fussy(Gated):
    """Takes no configuration but the first."""

    broken = False

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        if cls.broken:
            raise KeyError("weird")
        return super().from_config(config)


def start() -> Tensor:
    return torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1))


def same(one: MemoryNetwork, other: MemoryNetwork) -> None:
    torch.testing.assert_close(one(start(), 4), other(start(), 4), atol=0, rtol=0)


NETWORKS: dict[str, tuple[Any, list[type[nn.Module]]]] = {
    "a cell with a configuration": (lambda: MemoryNetwork(Gated(4, scale=0.5)), [Gated]),
    "a head without": (lambda: MemoryNetwork(AttentionCell(4), Readout()), [Readout]),
    "both": (lambda: MemoryNetwork(Gated(4), Readout()), [Gated, Readout]),
    "a bare subclass": (lambda: MemoryNetwork(Attentive(4, heads=2)), [Attentive]),
    "nested in a Sequential": (
        lambda: MemoryNetwork(Gated(4), nn.Sequential(nn.LayerNorm(4), Readout(), nn.Softplus())),
        [Gated, Readout],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_loaded_from_the_directory_alone(name: str, tmp_path: Path) -> None:
    make, classes = NETWORKS[name]
    network = make()
    network.save(tmp_path)
    same(MemoryNetwork.load(tmp_path, classes=classes), network)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_error_says_what_to_hand_in(name: str, tmp_path: Path) -> None:
    make, classes = NETWORKS[name]
    make().save(tmp_path)
    missing = classes[0]
    wanted = rf"classes=\[{missing.__name__}\] \(--class {missing.__module__}:{missing.__name__}\)"
    with pytest.raises(ValueError, match=wanted):
        MemoryNetwork.load(tmp_path, classes=classes[1:])


def test_a_class_of_a_script(tmp_path: Path) -> None:
    """Saved as __main__.Gated, loaded by a program that imports it."""
    script = type("Gated", (Gated,), {"__module__": "__main__", "__qualname__": "Gated"})
    network = MemoryNetwork(script(4))
    network.save(tmp_path)
    same(MemoryNetwork.load(tmp_path, classes=[Gated]), network)


HEADS = [
    nn.Linear(4, 3, bias=False), nn.Identity(), nn.LayerNorm(4, eps=1e-3), nn.Dropout(0.3),
    nn.ReLU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.ELU(0.5), nn.Mish(),
    nn.LeakyReLU(0.2), nn.Softplus(2.0, 10.0), nn.Softmax(-1), nn.LogSoftmax(-1), nn.Hardswish(),
    nn.Flatten(2), nn.LayerNorm(4, elementwise_affine=False),
    nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.SiLU(), nn.Linear(8, 1))),
]  # fmt: skip


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_heads_of_torch_load_by_themselves(head: nn.Module, tmp_path: Path) -> None:
    network = MemoryNetwork(AttentionCell(4), head).eval()
    network.save(tmp_path)
    same(MemoryNetwork.load(tmp_path).eval(), network)


@pytest.mark.parametrize("name", ["attention", "recurrent"])
def test_directories_of_the_first_format_load(name: str) -> None:
    expected = load_file(OLD / name / "expected.safetensors")
    network = MemoryNetwork.load(OLD / name)
    result = network(expected["start"], 5, expected.get("inputs"))
    torch.testing.assert_close(result, expected["result"])


class TestBadClasses:
    def test_no_name_of_a_file_is_imported(self, tmp_path: Path) -> None:
        MemoryNetwork(Gated(4)).save(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["cell"]["class"] == f"{Gated.__module__}.Gated"
        with pytest.raises(ValueError, match="pass its class as"):
            MemoryNetwork.load(tmp_path)

    def test_something_else_than_a_class(self, tmp_path: Path) -> None:
        MemoryNetwork(Gated(4)).save(tmp_path)
        with pytest.raises(TypeError, match=r"classes must be subclasses of torch\.nn\.Module"):
            MemoryNetwork.load(tmp_path, classes=[Gated(4)])  # type: ignore[list-item]

    def test_a_from_config_that_raises(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        network = MemoryNetwork(Fussy(4))
        network.save(tmp_path / "good")
        monkeypatch.setattr(Fussy, "broken", True)
        message = r"cell: Fussy\.from_config\(.*\) failed: KeyError: 'weird'"
        with pytest.raises(ValueError, match=message):
            network.save(tmp_path / "bad")
        assert not (tmp_path / "bad").exists()
        with pytest.raises(ValueError, match=message):
            MemoryNetwork.load(tmp_path / "good", classes=[Fussy])

    def test_a_configuration_that_is_no_json(self, tmp_path: Path) -> None:
        cell = Gated(4)
        cell.scale = torch.ones(())  # type: ignore[assignment]
        with pytest.raises(ValueError, match=r"Gated\.config\(\) must return a dictionary"):
            MemoryNetwork(cell).save(tmp_path / "bad")
        assert not (tmp_path / "bad").exists()

    def test_parts_that_the_configuration_does_not_make(self, tmp_path: Path) -> None:
        cell = Gated(4)
        cell.layer = nn.Sequential(nn.Linear(4, 4))  # type: ignore[assignment]
        network = MemoryNetwork(cell)
        network.save(tmp_path)
        with pytest.raises(ValueError, match="pass an instance as cell="):
            MemoryNetwork.load(tmp_path, classes=[Gated])
        own = Gated(4)
        own.layer = nn.Sequential(nn.Linear(4, 4))  # type: ignore[assignment]
        same(MemoryNetwork.load(tmp_path, cell=own), network)
