"""The forecaster's network."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from memmodel.cells import AttentionCell, RecurrentCell
from memmodel.config import from_config
from memmodel.network import MemoryNetwork
from memmodel.spec import spec_of
from memmodel.train.options import TrainOptions

_RECURRENT = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def build_network(options: TrainOptions, own: type[nn.Module] | None = None) -> MemoryNetwork:
    """Make an untrained network: a cell that writes slots, and a head that reads values off them.

    It maps start slots ``(B, k0, width)`` to scaled forecasts ``(B, steps, 1)``. The attention
    cell also takes each step's age and phases as inputs: the future's calendar is known.

    Args:
        options: what to make.
        own: a class of the user's own that makes the cell; see :func:`own_cell`.

    Raises:
        ValueError: ``own`` does not make a cell for slots of that width.
    """
    width = options.width
    cell: nn.Module
    if own is not None:
        cell = own_cell(own, width, options.preprocessing().input_dim, options.cell_config or {})
    elif options.cell == "attention":
        cell = AttentionCell(
            width, heads=options.heads, input_dim=options.preprocessing().input_dim
        )
    else:
        cell = RecurrentCell(_RECURRENT[options.cell](width, width, batch_first=True))
    return MemoryNetwork(cell, nn.Linear(width, 1))


def takes_inputs(network: MemoryNetwork) -> bool:
    """Whether the network's cell takes per-step inputs."""
    spec = spec_of(network.cell)
    return spec is not None and spec.inputs is not None


def own_cell(
    kind: type[nn.Module], slot_dim: int, input_dim: int | None, config: Mapping[str, Any]
) -> nn.Module:
    """Let ``kind.from_config({"slot_dim": ..., "input_dim": ..., **config})`` make a cell.

    Args:
        kind: a cell's class with ``from_config`` and ``spec``.
        slot_dim: width of a slot.
        input_dim: width of a step's input, for a cell that takes one.
        config: what else ``from_config`` needs; may replace the two.

    Raises:
        ValueError: the class lacks a method, or its cell is made for other shapes.
    """
    cell = from_config(kind, {"slot_dim": slot_dim, "input_dim": input_dim, **config}, "cell")
    spec = spec_of(cell)
    if spec is None:
        raise ValueError(f"cell: {kind.__name__} must have a method spec() to be trained on data")
    for name, wanted, said in (
        ("slots", (slot_dim,), spec.slot),
        ("inputs", (input_dim,), spec.inputs),
    ):
        if said is not None and getattr(said, "shape", None) != wanted:
            raise ValueError(
                f"cell: {kind.__name__} must take {name} of shape {wanted}, its spec says {said}"
            )
    return cell
