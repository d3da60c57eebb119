"""A cell that reads the prefix by attention and makes the next slot from what it read."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from memmodel.cells.attention_ops import attention_rollout
from memmodel.cells.fast import check_operand, computes_as, under_autocast
from memmodel.ops import masked_read, newest_slot
from memmodel.spec import CellSpec


class AttentionCell(nn.Module):
    r"""Multi-head attention over the prefix, then a per-row controller that makes the next slot.

    With :math:`z = [\text{newest slot}, \text{input}]`, per head :math:`h` of width
    :math:`d = D / H` (scaled dot-product attention, Vaswani et al. 2017, eq. 1, with the slots
    themselves as keys and values):

    .. math::

        q_h = (W_q z + b_q)_h, \quad
        r_h = \sum_j \operatorname{softmax}_j(q_h \cdot m_{j,h} / \sqrt d)\, m_{j,h}, \quad
        \text{slot} = r + W_o \tanh(W_c [z, r] + b_c) + b_o .

    The residual path from the read gives gradients a way back to any slot in one step.

    Args:
        slot_dim: width D of a slot.
        heads: number of heads H; must divide ``slot_dim``.
        input_dim: width I of the per-step input, or None for a cell without inputs.
        dtype: dtype of the parameters.
        device: device of the parameters.

    Raises:
        ValueError: a width is not positive, or ``heads`` does not divide ``slot_dim``.
    """

    def __init__(
        self,
        slot_dim: int,
        *,
        heads: int = 1,
        input_dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if slot_dim < 1:
            raise ValueError(f"slot_dim must be at least 1, got {slot_dim}")
        if heads < 1 or slot_dim % heads:
            raise ValueError(f"heads must divide slot_dim={slot_dim}, got {heads}")
        if input_dim is not None and input_dim < 1:
            raise ValueError(f"input_dim must be None or at least 1, got {input_dim}")
        self.slot_dim = slot_dim
        self.heads = heads
        self.input_dim = input_dim
        width = slot_dim + (input_dim or 0)
        self.query = nn.Linear(width, slot_dim, dtype=dtype, device=device)
        self.controller = nn.Linear(width + slot_dim, slot_dim, dtype=dtype, device=device)
        self.output = nn.Linear(slot_dim, slot_dim, dtype=dtype, device=device)
        self.scale = 1.0 / math.sqrt(slot_dim // heads)

    def config(self) -> dict[str, int | None]:
        """Constructor arguments that make a cell of this structure."""
        return {"slot_dim": self.slot_dim, "heads": self.heads, "input_dim": self.input_dim}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make the cell that :meth:`config` describes."""
        return cls(**config)

    def spec(self) -> CellSpec:
        """Slots ``(D,)``, inputs ``(I,)`` where the cell has ``input_dim``."""
        return CellSpec((self.slot_dim,), None if self.input_dim is None else (self.input_dim,))

    def extra_repr(self) -> str:
        """Arguments shown by ``repr``."""
        return f"slot_dim={self.slot_dim}, heads={self.heads}, input_dim={self.input_dim}"

    def forward(self, prefix: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Make the next slot from the written ones: the plain form.

        Args:
            prefix: written slots, oldest first, ``(B, k, D)`` with k ≥ 1.
            inputs: this step's input ``(B, I)`` where the cell has ``input_dim``.

        Returns:
            The next slot ``(B, D)``.
        """
        newest = prefix[:, -1]
        z = newest if inputs is None else torch.cat([newest, inputs], dim=1)
        if torch.jit.is_scripting():
            read = self._read(z, prefix)
        else:
            exporting = torch.compiler.is_exporting()
            read = self._read_in_place(z, prefix) if exporting else self._read(z, prefix)
        return self._make(z, read)

    def _read(self, z: Tensor, prefix: Tensor) -> Tensor:
        # (B, H, k, d): each head reads its own part of every slot.
        slots = prefix.unflatten(2, (self.heads, self.slot_dim // self.heads)).transpose(1, 2)
        query = self.query(z).unflatten(1, (self.heads, self.slot_dim // self.heads))
        scores = torch.matmul(slots, query.unsqueeze(3)).squeeze(3) * self.scale  # (B, H, k)
        weights = torch.softmax(scores, dim=2)
        return torch.matmul(weights.unsqueeze(2), slots).flatten(1)  # (B, D)

    def _read_in_place(self, z: Tensor, prefix: Tensor) -> Tensor:
        """:meth:`_read` for exported graphs, whose runtimes copy the prefix to move its heads.

        The query is spread over one row per head instead, zero outside the head's part, so that
        both products take the prefix as it lies.
        """
        query = (self.query(z) * self.scale).unsqueeze(1)  # (B, 1, D)
        # (H, D), one where column d belongs to head h.
        own = torch.eye(self.heads, dtype=prefix.dtype, device=prefix.device)
        own = own.repeat_interleave(self.slot_dim // self.heads, dim=1)
        query = query * own if self.heads > 1 else query
        weights = torch.softmax(torch.matmul(query, prefix.transpose(1, 2)), dim=2)  # (B, H, k)
        read = torch.matmul(weights, prefix)  # (B, H, D)
        return (read * own).sum(1) if self.heads > 1 else read.squeeze(1)

    def _make(self, z: Tensor, read: Tensor) -> Tensor:
        """The new slot, from what the query was made of and what it read."""
        return read + self.output(torch.tanh(self.controller(torch.cat([z, read], dim=1))))

    @torch.jit.unused
    def masked(self, memory: Tensor, length: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Make the next slot of each row from a memory that is not filled to its end.

        Args:
            memory: ``(B, N, D)``; what lies past a row's length does not matter.
            length: number of written slots per row, ``(B,)`` int64, each in 1..N.
            inputs: this step's input ``(B, I)`` where the cell has ``input_dim``.

        Returns:
            The next slots ``(B, D)``.
        """
        newest = newest_slot(memory, length)
        z = newest if inputs is None else torch.cat([newest, inputs], dim=1)
        query = self.query(z) * self.scale
        return self._make(z, masked_read(query, memory, length, heads=self.heads))

    def fast_rollout_applies(self) -> bool:
        """Whether :meth:`fast_rollout` computes what calling the cell step by step would.

        It does not under autocast, nor with layers replaced by something else than ``nn.Linear``.
        """
        layers = (self.query, self.controller, self.output)
        plain = all(computes_as(layer, nn.Linear) and layer.bias is not None for layer in layers)
        return plain and not under_autocast(self)

    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        """What :func:`memmodel.rollout` runs: the plain form's numbers, by one registered op.

        Args:
            start: slots present before the rollout, ``(B, k0, D)`` with k0 ≥ 1.
            steps: number of slots to write.
            inputs: per-step inputs ``(B, steps, I)`` where the cell has ``input_dim``.

        Returns:
            The memory ``(B, k0 + steps, D)``; first-order gradients only.

        Raises:
            ValueError: ``start`` or ``inputs`` has the wrong shape or device, or ``inputs`` is
                missing, or given to a cell without ``input_dim``.
            TypeError: a dtype differs from that of the parameters, or is complex.
        """
        check_operand("start", start, self.slot_dim, self.query.weight)
        if (inputs is None) != (self.input_dim is None):
            rule = "(B, steps, I)" if self.input_dim else "None"
            given = "None" if inputs is None else f"shape {tuple(inputs.shape)}"
            raise ValueError(
                f"inputs must be {rule} for a cell with input_dim={self.input_dim}, got {given}"
            )
        if inputs is not None and self.input_dim is not None:
            check_operand("inputs", inputs, self.input_dim, self.query.weight)
        weights = (
            self.query.weight, self.query.bias,
            self.controller.weight, self.controller.bias,
            self.output.weight, self.output.bias,
        )  # fmt: skip
        return attention_rollout(start, inputs, *weights, steps, self.heads, self.scale)
