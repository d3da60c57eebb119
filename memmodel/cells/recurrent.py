"""A cell that runs a recurrent network over the prefix."""

from typing import Any, Self

from torch import Tensor, nn

from memmodel.cells.fast import check_operand, computes_as, under_autocast
from memmodel.cells.recurrent_ops import recurrent_rollout
from memmodel.spec import CellSpec

_KINDS: dict[str, type[nn.RNNBase]] = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}


class RecurrentCell(nn.Module):
    """The last output of ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM`` over the prefix is the next slot.

    Calling the cell runs the network over the whole prefix, O(k). :func:`memmodel.rollout` keeps
    the hidden state between steps instead, O(1) per step, with the same numbers.

    Args:
        rnn: the recurrent network; its output width must equal its input width D.

    Raises:
        TypeError: ``rnn`` is not an ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM``.
        ValueError: ``rnn`` is bidirectional (its output would depend on later slots), or its
            output width differs from its input width.
    """

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        if type(rnn) not in _KINDS.values():
            raise TypeError(f"rnn must be nn.RNN, nn.GRU or nn.LSTM, got {type(rnn).__name__}")
        if rnn.bidirectional:
            raise ValueError("rnn must not be bidirectional: a slot may not depend on later slots")
        width = rnn.proj_size or rnn.hidden_size
        if width != rnn.input_size:
            raise ValueError(
                f"rnn must map slots to slots: its output width {width} "
                f"differs from its input_size {rnn.input_size}"
            )
        self.rnn = rnn

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make the cell that :meth:`config` describes."""
        arguments = dict(config)
        return cls(_KINDS[arguments.pop("kind")](**arguments))

    def config(self) -> dict[str, Any]:
        """Kind and constructor arguments of the recurrent network."""
        rnn = self.rnn
        config: dict[str, Any] = {
            "kind": type(rnn).__name__,
            "input_size": rnn.input_size,
            "hidden_size": rnn.hidden_size,
            "num_layers": rnn.num_layers,
            "bias": rnn.bias,
            "batch_first": rnn.batch_first,
            "dropout": rnn.dropout,
        }
        if isinstance(rnn, nn.LSTM):
            config["proj_size"] = rnn.proj_size
        if isinstance(rnn, nn.RNN):
            config["nonlinearity"] = rnn.nonlinearity
        return config

    def spec(self) -> CellSpec:
        """Slots ``(D,)``, no inputs."""
        return CellSpec((self.rnn.input_size,))

    def forward(self, prefix: Tensor) -> Tensor:
        """Make the next slot from the written ones: the plain form.

        Args:
            prefix: written slots, oldest first, ``(B, k, D)`` with k ≥ 1.

        Returns:
            The next slot ``(B, D)``.
        """
        if self.rnn.batch_first:
            return self.rnn(prefix)[0][:, -1]
        return self.rnn(prefix.transpose(0, 1))[0][-1]

    def fast_rollout_applies(self) -> bool:
        """Whether :meth:`fast_rollout` computes what calling the cell step by step would.

        It does not under autocast, nor with dropout between layers in training: calling the cell
        draws new masks for the whole prefix at every step, which no kept state can repeat.
        """
        rnn = self.rnn
        drops = rnn.training and rnn.dropout > 0 and rnn.num_layers > 1
        plain = computes_as(rnn, _KINDS[rnn.mode.removesuffix("_TANH").removesuffix("_RELU")])
        return plain and not drops and not under_autocast(self)

    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        """What :func:`memmodel.rollout` runs: the plain form's numbers at O(1) per step.

        Args:
            start: slots present before the rollout, ``(B, k0, D)`` with k0 ≥ 1.
            steps: number of slots to write.
            inputs: None; the cell takes no inputs.

        Returns:
            The memory ``(B, k0 + steps, D)``; first-order gradients only.

        Raises:
            ValueError: ``start`` has the wrong shape or device, or ``inputs`` is given.
            TypeError: ``start``'s dtype differs from that of the parameters, or is complex.
        """
        rnn = self.rnn
        weights: list[Tensor] = [weight for layer in rnn.all_weights for weight in layer]
        check_operand("start", start, rnn.input_size, weights[0])
        if inputs is not None:
            raise ValueError("inputs must be None: a RecurrentCell takes none")
        return recurrent_rollout(
            start,
            weights,
            mode=rnn.mode,
            layers=rnn.num_layers,
            bias=rnn.bias,
            steps=steps,
        )
