"""Everything that decides the result of a training run, checked in one place."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from memmodel.train.preprocessing import Preprocessing

CELLS = ("attention", "rnn", "gru", "lstm")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a run.

    Attributes:
        window: observed points that a forecast starts from.
        horizon: points to forecast.
        periods: seasonal periods, in points.
        cell: "attention", "rnn", "gru" or "lstm"; "module:Class" for a class of the user's own.
        cell_config: what that class's ``from_config`` gets beside the widths; JSON-ready.
        width: numbers per slot.
        heads: attention heads; must divide ``width``.
        epochs: passes over the training windows.
        batch_size: windows per optimiser step.
        lr: peak learning rate: short linear warm-up, then half a cosine down to zero.
        weight_decay: AdamW's weight decay.
        clip: largest norm of the gradient.
        stride: distance in points between the origins of training windows.
        holdout: last fraction of each series, kept for the final measurement.
        validation: fraction before it, used to pick the best epoch.
        seed: of the weights and of the order of the windows.
        compile: train with ``torch.compile``.

    Raises:
        ValueError: an option breaks a rule; the message names it.
    """

    window: int
    horizon: int
    periods: tuple[int, ...] = ()
    cell: str = "attention"
    cell_config: dict[str, Any] | None = None
    width: int = 32
    heads: int = 4
    epochs: int = 30
    batch_size: int = 32
    lr: float = 6e-3
    weight_decay: float = 1e-3
    clip: float = 1.0
    stride: int = 1
    holdout: float = 0.2
    validation: float = 0.1
    seed: int = 0
    compile: bool = False

    def __post_init__(self) -> None:
        if self.cell not in CELLS and ":" not in self.cell:
            raise ValueError(f"cell must be one of {', '.join(CELLS)}, got {self.cell!r}")
        if self.cell_config is not None and self.cell in CELLS:
            raise ValueError(f"cell_config is for a class of your own, got it for {self.cell!r}")
        for name in ("epochs", "batch_size", "stride", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        for name in ("holdout", "validation"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.holdout + self.validation >= 1:
            raise ValueError(
                f"holdout={self.holdout} and validation={self.validation} leave nothing to train on"
            )
        if self.cell == "attention" and self.width % self.heads:
            raise ValueError(f"heads must divide width={self.width}, got {self.heads}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")
        self.preprocessing()

    def preprocessing(self) -> Preprocessing:
        """The form in which this run's network takes windows."""
        return Preprocessing(
            window=self.window,
            horizon=self.horizon,
            periods=self.periods,
            slot_dim=self.width,
            parts=self.heads if self.cell == "attention" else 1,
        )

    def to_json(self) -> dict[str, Any]:
        """The options as JSON-ready values."""
        return {**asdict(self), "periods": list(self.periods)}

    def differences(self, other: dict[str, Any]) -> list[str]:
        """One line per option that is not as in ``other``, which :meth:`to_json` made."""
        mine = self.to_json()
        return [
            f"{field.name} was {other.get(field.name)!r}, now {mine[field.name]!r}"
            for field in fields(self)
            if mine[field.name] != other.get(field.name)
        ]
