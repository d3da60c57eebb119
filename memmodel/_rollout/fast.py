"""When a cell's own rollout may stand in for running the cell step by step."""

from typing import Any, TypeGuard

import torch
from torch import nn

from memmodel.cell import HasFastRollout, has_hooks, offered


def has_fast_path(cell: Any) -> TypeGuard[HasFastRollout]:
    """Whether ``cell.fast_rollout`` computes what calling ``cell`` would.

    A ``forward`` newer than ``fast_rollout``, and hooks, change what a call does: such cells are
    rolled out step by step.
    """
    if not isinstance(cell, nn.Module) or not _offers_fast_rollout(cell) or has_hooks(cell):
        return False
    applies = getattr(cell, "fast_rollout_applies", None)
    return applies is None or bool(applies())


@torch.compiler.assume_constant_result
def _offers_fast_rollout(cell: nn.Module) -> bool:
    return offered(cell, "fast_rollout") is not None
