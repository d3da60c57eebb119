"""What the cells' rollout ops share."""

from typing import Any


def refuse_second_order(ctx: Any, *grads: Any) -> None:
    """Backward of the ops that compute gradients: they are not differentiable themselves."""
    raise RuntimeError(
        "this cell's fast rollout has first-order gradients only: for higher orders use "
        "memmodel.rollout(..., recompute=False)"
    )
