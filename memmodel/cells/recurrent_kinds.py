"""What tells nn.RNN, nn.GRU and nn.LSTM apart: gates, and the states they make.

A step of each kind is one linear map of input and state to G gates of width H, then elementwise
work. Gates are ordered so that few operations follow:

- Elman network (``nn.RNN``): ``h' = act(a)``.
- GRU: r, z, x, y, with ``n = tanh(x + r y)`` and ``h' = (1 - z) n + z h``; PyTorch's gate n is
  split into x, the input's part, and y, the state's part.
- LSTM: o, i, f, g, with ``c' = f c + i g`` and ``h' = o tanh(c')``, projected if the layer does so.

Backward multiplies by factors: as all states are known, those of many steps are computed at once,
and what remains per step is ``gradient of the gates = gradient of the state × factor``.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override


class States(NamedTuple):
    """States of n steps of a layer: before and after each step, step-first."""

    before: Tensor  # (n, B, P)
    after: Tensor  # (n, B, P)
    cell_before: Tensor  # (n, B, H); LSTM only, as is cell_after
    cell_after: Tensor  # (n, B, H)


class Kind(ABC):
    """Elementwise part of a recurrent layer, forward and backward."""

    gates: int  # G
    parameter_gates: int  # blocks of rows in PyTorch's parameters
    needs_gates = True  # whether the factors depend on more than the states
    has_cell = False  # whether there is a cell state c besides h

    @staticmethod
    def arrange(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Order the rows of the input's and the state's weights (or biases) as the gates."""
        return x, h

    @staticmethod
    def restore(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Order gradients of such rows as PyTorch's parameters."""
        return x, h

    @abstractmethod
    def advance(self, gates: Tensor, h: Tensor, new_h: Tensor, c: Tensor, new_c: Tensor) -> None:
        """Write the new states, from gates ``(B, G·H)`` that may be overwritten."""

    @abstractmethod
    def factors(self, gates: Tensor, states: States) -> tuple[Tensor, ...]:
        """Factors of n steps, step-first, from gates ``(n, B, G, H)`` that may be overwritten.

        LSTM: the last one is the new state before projection.
        """

    @abstractmethod
    def retreat(
        self, grad_h: Tensor, grad_c: Tensor, factors: tuple[Tensor, ...], out: Tensor
    ) -> Tensor | None:
        """One step back.

        Args:
            grad_h: gradient of the new state ``(B, H)``, before projection.
            grad_c: LSTM: gradient of the new cell state ``(B, H)``; becomes that of the old one.
            factors: this step's factors.
            out: gets the gates' gradient ``(B, G, H)``.

        Returns:
            What the old state gets from the new one other than through the gates, or None.
        """


class Elman(Kind):
    """``nn.RNN`` with tanh or relu."""

    gates = parameter_gates = 1
    needs_gates = False

    def __init__(self, nonlinearity: str) -> None:
        self.tanh = nonlinearity == "tanh"

    @override
    def advance(self, gates: Tensor, h: Tensor, new_h: Tensor, c: Tensor, new_c: Tensor) -> None:
        if self.tanh:
            torch.tanh(gates, out=new_h)
        else:
            torch.clamp_min(gates, 0, out=new_h)

    @override
    def factors(self, gates: Tensor, states: States) -> tuple[Tensor, ...]:
        new_h = states.after
        return (1 - new_h.square() if self.tanh else (new_h > 0).to(new_h.dtype),)

    @override
    def retreat(
        self, grad_h: Tensor, grad_c: Tensor, factors: tuple[Tensor, ...], out: Tensor
    ) -> Tensor | None:
        torch.mul(grad_h, factors[0], out=out.squeeze(1))
        return None


class GRU(Kind):
    """``nn.GRU``."""

    gates = 4
    parameter_gates = 3

    @staticmethod
    @override
    def arrange(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        x_r, x_z, x_n = x.chunk(3)
        h_r, h_z, h_n = h.chunk(3)
        return (
            torch.cat([x_r, x_z, x_n, torch.zeros_like(x_n)]),
            torch.cat([h_r, h_z, torch.zeros_like(h_n), h_n]),
        )

    @staticmethod
    @override
    def restore(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h_r, h_z, _, h_n = h.chunk(4)
        return x[: 3 * len(x) // 4].clone(), torch.cat([h_r, h_z, h_n])

    @override
    def advance(self, gates: Tensor, h: Tensor, new_h: Tensor, c: Tensor, new_c: Tensor) -> None:
        width = new_h.shape[1]
        r, z, x, y = gates.split(width, dim=1)
        gates[:, : 2 * width].sigmoid_()
        torch.lerp(x.addcmul_(r, y).tanh_(), h, z, out=new_h)

    @override
    def factors(self, gates: Tensor, states: States) -> tuple[Tensor, ...]:
        r, z, x, y = gates.unbind(2)
        gates[:, :, :2].sigmoid_()
        n = torch.tanh(x.addcmul(r, y))
        through_n = (1 - z) * (1 - n.square())
        through_z = (states.before - n) * z * (1 - z)
        through_r = through_n * y * r * (1 - r)
        return torch.stack([through_r, through_z, through_n, through_n * r], dim=2), z

    @override
    def retreat(
        self, grad_h: Tensor, grad_c: Tensor, factors: tuple[Tensor, ...], out: Tensor
    ) -> Tensor | None:
        torch.mul(grad_h.unsqueeze(1), factors[0], out=out)
        return grad_h * factors[1]


class LSTM(Kind):
    """``nn.LSTM``."""

    gates = parameter_gates = 4
    has_cell = True

    @staticmethod
    @override
    def arrange(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x.roll(len(x) // 4, 0), h.roll(len(h) // 4, 0)

    @staticmethod
    @override
    def restore(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x.roll(-(len(x) // 4), 0), h.roll(-(len(h) // 4), 0)

    @override
    def advance(self, gates: Tensor, h: Tensor, new_h: Tensor, c: Tensor, new_c: Tensor) -> None:
        width = new_c.shape[1]
        o, i, f, g = gates.split(width, dim=1)
        gates[:, : 3 * width].sigmoid_()
        torch.mul(f, c, out=new_c)
        new_c.addcmul_(i, g.tanh_())
        torch.mul(o, torch.tanh(new_c), out=new_h)

    @override
    def factors(self, gates: Tensor, states: States) -> tuple[Tensor, ...]:
        o, i, f, g = gates.unbind(2)
        gates[:, :, :3].sigmoid_()
        g.tanh_()
        tanh_c = torch.tanh(states.cell_after)
        through_c = torch.stack(
            [g * i * (1 - i), states.cell_before * f * (1 - f), i * (1 - g.square())], dim=2
        )
        return tanh_c * o * (1 - o), through_c, o * (1 - tanh_c.square()), f, o * tanh_c

    @override
    def retreat(
        self, grad_h: Tensor, grad_c: Tensor, factors: tuple[Tensor, ...], out: Tensor
    ) -> Tensor | None:
        through_o, through_c, into_c, f, _ = factors
        torch.mul(grad_h, through_o, out=out[:, 0])
        grad_c.addcmul_(grad_h, into_c)
        torch.mul(grad_c.unsqueeze(1), through_c, out=out[:, 1:])
        grad_c.mul_(f)
        return None


def kind_named(name: str) -> Kind:
    """The kind with PyTorch's mode name, as in ``nn.RNNBase.mode``."""
    return {
        "RNN_TANH": Elman("tanh"),
        "RNN_RELU": Elman("relu"),
        "GRU": GRU(),
        "LSTM": LSTM(),
    }[name]
