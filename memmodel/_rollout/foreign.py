"""Finding tensors that a cell computes with behind the back of autograd."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from memmodel._rollout.capture import Cell
from memmodel._rollout.guard import refuse_unreachable

# Whoever asks for a tensor without its gradient gets it.
_CUTS = (Tensor.detach, Tensor.detach_, Tensor.data.__get__)  # type: ignore[attr-defined]


def refusing_foreign_tensors(cell: Cell) -> Cell:
    """``cell``, which raises if it computes with a tensor that requires a gradient.

    For use below autograd, where the tensors that the cell is meant to have require none.
    """

    def step(*arguments: Tensor) -> Tensor:
        with torch.enable_grad(), _RefuseForeign():
            slot = cell(*arguments)
        _refuse((slot,))
        return slot

    return step


class _RefuseForeign(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        computed = any(isinstance(leaf, Tensor) for leaf in tree_leaves(result))
        if computed and torch.is_grad_enabled() and func not in _CUTS:
            _refuse(tree_leaves((args, kwargs)))
        return result


def _refuse(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, Tensor) and value.requires_grad:
            refuse_unreachable(value)
