"""Compare a cell's ``masked`` with its ``forward``."""

from typing import Any

import torch
from torch import Tensor

from memmodel.export.errors import ParityError
from memmodel.export.interface import Interface

_LENGTHS = (1, 4, 2, 7)
_SLOTS = 7


def check_masked(cell: Any, interface: Interface) -> None:
    """Compare at several lengths in one batch, with NaN behind them.

    Raises:
        ParityError: a row differs, or ``masked`` fails; names the class and the length.
    """
    name = type(cell).__name__
    memory, inputs = interface.draw(len(_LENGTHS), _SLOTS, 1)
    step = [] if inputs is None else [inputs[:, 0]]
    length = torch.tensor(_LENGTHS, device=memory.device)
    written = torch.arange(_SLOTS, device=memory.device) < length[:, None]
    written = written.view(*written.shape, *(1 for _ in memory.shape[2:]))
    try:
        slots = cell.masked(torch.where(written, memory, torch.nan), length, *step)
    except Exception as error:  # the cell is the user's code
        raise ParityError(f"{name}.masked fails: {type(error).__name__}: {error}") from error
    for row, count in enumerate(_LENGTHS):
        expected = cell(memory[row : row + 1, :count], *(x[row : row + 1] for x in step))[0]
        _compare(name, count, slots[row], expected)


def _compare(name: str, length: int, got: Tensor, expected: Tensor) -> None:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise ParityError(
            f"{name}.masked must make slots like forward's, {expected.dtype} "
            f"{tuple(expected.shape)} per row, got {got.dtype} {tuple(got.shape)}"
        )
    difference = (got - expected).abs().max()
    scale = expected.abs().max().clamp_min(1e-6)
    # Sums over a buffer and over a prefix round differently.
    if not difference <= scale * torch.finfo(expected.dtype).eps ** 0.5:  # also true of NaN
        raise ParityError(
            f"{name}.masked makes another slot than forward from {length} written slots of "
            f"{_SLOTS}, the others NaN: it differs by {float(difference):.3g}; what lies past the "
            "length must not matter"
        )
