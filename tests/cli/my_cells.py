"""A user's own package: what --class names."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from memmodel import CellSpec

not_a_class = 3


class Mine(nn.Module):
    """Mean of the prefix, and the step's input."""

    def __init__(self, slot_dim: int, input_dim: int, gain: float = 1.0) -> None:
        super().__init__()
        self.slot_dim, self.input_dim, self.gain = slot_dim, input_dim, gain
        self.layer = nn.Linear(slot_dim + input_dim, slot_dim)

    def spec(self) -> CellSpec:
        return CellSpec((self.slot_dim,), (self.input_dim,))

    def config(self) -> dict[str, Any]:
        return {"slot_dim": self.slot_dim, "input_dim": self.input_dim, "gain": self.gain}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)

    def forward(self, prefix: Tensor, inputs: Tensor) -> Tensor:
        return self.gain * torch.tanh(self.layer(torch.cat([prefix.mean(1), inputs], dim=1)))


class Lying(Mine):
    def spec(self) -> CellSpec:
        return CellSpec((self.slot_dim + 1,), (self.input_dim,))
