"""What check_cell lets pass, and that it catches each rule broken."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memmodel import AttentionCell, CellSpec, RecurrentCell
from memmodel.testing import CellError, check_cell

PAGE = Path(__file__).parents[2] / "docs" / "cells.md"


class Good(nn.Module):
    """The mean of the written slots through a linear layer, with every method."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width, self.layer = width, nn.Linear(width, width)

    def forward(self, prefix: Tensor) -> Tensor:
        return torch.tanh(self.layer(prefix.mean(1)))

    def spec(self) -> CellSpec:
        return CellSpec((self.width,))

    def config(self) -> dict[str, Any]:
        return {"width": self.width}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Good":
        return cls(**config)

    def masked(self, memory: Tensor, length: Tensor) -> Tensor:
        written = torch.arange(memory.shape[1], device=memory.device) < length[:, None]
        total = torch.where(written[..., None], memory, 0).sum(1)
        return torch.tanh(self.layer(total / length[:, None]))

    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        memory = start
        for _ in range(steps):
            memory = torch.cat([memory, self(memory)[:, None]], 1)
        return memory


class LyingSpec(Good):
    def spec(self) -> CellSpec:
        return CellSpec((self.width,), dtype=torch.float64)


class ReadsBehind(Good):
    def masked(self, memory: Tensor, length: Tensor) -> Tensor:
        return self.forward(memory)


class MultipliesBehind(Good):
    def masked(self, memory: Tensor, length: Tensor) -> Tensor:
        written = torch.arange(memory.shape[1]) < length[:, None]
        total = (memory * written[..., None]).sum(1)  # NaN times zero is NaN
        return torch.tanh(self.layer(total / length[:, None]))


class WrongValues(Good):
    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        return super().fast_rollout(start, steps) + 1e-6


class NoGradients(Good):
    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        return super().fast_rollout(start, steps).detach()


class Random(Good):
    def forward(self, prefix: Tensor) -> Tensor:
        return super().forward(prefix) + torch.rand(())


class Counts(Good):
    def __init__(self, width: int = 4) -> None:
        super().__init__(width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, prefix: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(prefix)


class NotJson(Good):
    def config(self) -> dict[str, Any]:
        return {"width": torch.tensor(4)}


class OtherWidth(Good):
    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Good":
        return cls(config["width"] + 1)


class OtherClass(Good):
    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Good":
        return Good(**config)


CASES = [
    (LyingSpec, "spec: "),
    (ReadsBehind, "masked: .*nan behind them"),
    (MultipliesBehind, "masked: .*nan behind them"),
    (WrongValues, "fast_rollout: the memory differ"),
    (NoGradients, r"fast_rollout: the gradient of layer\.weight"),
    (Random, "forward: must repeat itself"),
    (Counts, "recompute: raises RuntimeError"),
    (NotJson, "config: raises TypeError"),
    (OtherWidth, "config: raises RuntimeError"),
    (OtherClass, "config: from_config makes a Good"),
]


@pytest.mark.parametrize(
    "cell",
    [
        Good(),
        AttentionCell(4, heads=2, input_dim=3),
        RecurrentCell(nn.GRU(4, 4, 2, dropout=0.5, batch_first=True)),
    ],
    ids=["Good", "AttentionCell", "RecurrentCell"],
)
def test_cells_that_keep_their_word(cell: nn.Module) -> None:
    before = {name: tensor.clone() for name, tensor in cell.state_dict().items()}
    state = torch.get_rng_state()
    check_cell(cell)
    assert torch.equal(torch.get_rng_state(), state)
    assert cell.training
    for name, tensor in cell.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("kind", "message"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_rule_broken_is_caught(kind: type[Good], message: str) -> None:
    with pytest.raises(CellError, match=message):
        check_cell(kind())


def test_all_broken_rules_are_listed() -> None:
    class Worst(LyingSpec, ReadsBehind, WrongValues, NotJson):
        pass

    with pytest.raises(CellError) as caught:
        check_cell(Worst())
    rules = {line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]}
    assert rules == {"spec", "config", "masked", "fast_rollout"}


def test_compile() -> None:
    torch.compiler.reset()
    check_cell(RecurrentCell(nn.RNN(4, 4)), compile=True)


def test_examples_stand_in_for_a_spec() -> None:
    cell = lambda prefix, inputs: torch.tanh(prefix.sum(1) + inputs)  # noqa: E731
    check_cell(cell, start=torch.randn(2, 1, 4), inputs=torch.randn(2, 3, 4))
    with pytest.raises(ValueError, match="start must be given"):
        check_cell(cell)
    with pytest.raises(ValueError, match="batch must be at least 2"):
        check_cell(Good(), batch=1)


def test_example_of_the_page() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), {})
