"""The forecaster's network."""

from torch import nn

from memmodel.cells import AttentionCell, RecurrentCell
from memmodel.network import MemoryNetwork
from memmodel.train.options import TrainOptions

_RECURRENT = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def build_network(options: TrainOptions) -> MemoryNetwork:
    """Make an untrained network: a cell that writes slots, and a head that reads values off them.

    It maps start slots ``(B, k0, width)`` to scaled forecasts ``(B, steps, 1)``. The attention
    cell also takes each step's age and phases as inputs: the future's calendar is known.
    """
    width = options.width
    if options.cell == "attention":
        cell: nn.Module = AttentionCell(
            width, heads=options.heads, input_dim=options.preprocessing().input_dim
        )
    else:
        cell = RecurrentCell(_RECURRENT[options.cell](width, width, batch_first=True))
    return MemoryNetwork(cell, nn.Linear(width, 1))


def takes_inputs(network: MemoryNetwork) -> bool:
    """Whether the network's cell takes per-step inputs."""
    return getattr(network.cell, "input_dim", None) is not None
