"""The public ``rollout``: checks its arguments and chooses how the cell is run."""

from collections.abc import Callable

import torch
from torch import Tensor


def rollout(
    cell: Callable[..., Tensor],
    start: Tensor,
    steps: int,
    inputs: Tensor | None = None,
    *,
    recompute: bool = True,
) -> Tensor:
    """Let ``cell`` write ``steps`` slots after ``start``.

    Args:
        cell: ``cell(prefix)`` or, with inputs, ``cell(prefix, inputs[:, i])`` makes the next slot
            ``(B, *slot)`` from the prefix ``(B, k, *slot)``; an ``nn.Module`` or a function.
        start: slots present before the rollout, ``(B, k0, *slot)`` with k0 ≥ 1.
        steps: number of slots to write, ≥ 0.
        inputs: per-step inputs ``(B, steps, ...)``.
        recompute: True: peak memory linear in steps for any cell; backward runs the cell again.
            False: keep the cell's activations; supports higher-order gradients.

    Returns:
        The memory ``(B, k0 + steps, *slot)``.

    Raises:
        ValueError: an argument breaks one of the rules above.
    """
    memory = start
    for i in range(steps):
        slot = cell(memory) if inputs is None else cell(memory, inputs[:, i])
        memory = torch.cat([memory, slot.unsqueeze(1)], dim=1)
    return memory
