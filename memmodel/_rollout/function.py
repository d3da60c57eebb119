"""The public ``rollout``: checks its arguments and chooses how the cell is run."""

from collections.abc import Callable

import torch
from torch import Tensor

from memmodel._rollout.checks import check_arguments, check_spec
from memmodel._rollout.eager import rollout_eager
from memmodel._rollout.fast import has_fast_path
from memmodel._rollout.plain import in_functorch, rollout_plain
from memmodel._rollout.traced import rollout_traced


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
        TypeError: an argument, or what the cell returns, is of another type than said above.
        ValueError: a shape, dtype, device or size breaks one of the rules above, also of a slot.
        RuntimeError: with ``recompute=True``, in forward or backward: the cell does what would make
            its recomputation give a wrong gradient (it modifies buffers, parameters or what it is
            given, reaches tensors whose gradient would be lost, or makes another slot the second
            time), or a gradient is differentiated again.
    """
    check_arguments(cell, start, steps, inputs)
    if torch.compiler.is_compiling():  # it would have to look into spec()
        return _run(cell, start, steps, inputs, recompute)
    check_spec(cell, start, inputs)
    try:
        return _run(cell, start, steps, inputs, recompute)
    except Exception as error:
        if start.ndim == 2:
            error.add_note(
                f"start of shape {tuple(start.shape)} holds slots of no dimension, one number per "
                "row each: for a single first slot x (B, D), pass x[:, None]"
            )
        raise


def _run(
    cell: Callable[..., Tensor], start: Tensor, steps: int, inputs: Tensor | None, recompute: bool
) -> Tensor:
    if not recompute or torch.compiler.is_exporting() or in_functorch():
        return rollout_plain(cell, start, steps, inputs)
    if torch.compiler.is_compiling():
        return rollout_traced(cell, start, steps, inputs)
    if has_fast_path(cell):
        return cell.fast_rollout(start, steps, inputs)
    return rollout_eager(cell, start, steps, inputs)
