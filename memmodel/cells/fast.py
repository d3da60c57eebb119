"""What the fast rollouts share: when they apply, and how their kernels run."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from memmodel._rollout.ambient import autocast_as

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def computes_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling ``module`` does what ``kind`` does with the module's parameters.

    Parametrized modules do; adapters, quantized layers and replaced ``forward`` methods do not.
    """
    return type(module).forward is kind.forward and "forward" not in module.__dict__


def under_autocast(module: nn.Module) -> bool:
    """Whether calls of ``module`` are cast to another dtype.

    The step-by-step rollout then decides dtypes operation by operation, as autocast does.
    """
    return any(torch.is_autocast_enabled(weight.device.type) for weight in module.parameters())


def in_own_dtype(kernel: Kernel) -> Kernel:
    """Decorate an op's kernel: neither autograd nor, where backward is called, autocast."""

    @wraps(kernel)
    def run(operand: Tensor, *arguments: Any) -> Any:
        with torch.no_grad(), autocast_as(operand.device.type, None):
            return kernel(operand, *arguments)

    return cast(Kernel, run)


def check_operand(name: str, operand: Tensor, width: int, weight: Tensor) -> None:
    """Raise unless ``operand`` is ``(B, length, width)`` with the weights' dtype and device."""
    if operand.ndim != 3 or operand.shape[2] != width:
        raise ValueError(
            f"{name} must be (B, length, {width}) for this cell, got shape {tuple(operand.shape)}"
        )
    if not weight.is_floating_point():
        raise TypeError(f"the cell's parameters must be real floating point, got {weight.dtype}")
    if operand.dtype != weight.dtype:
        raise TypeError(
            f"{name} must have the dtype of the cell's parameters, {weight.dtype}, "
            f"got {operand.dtype}"
        )
    if operand.device != weight.device:
        raise ValueError(
            f"{name} must be on the device of the cell's parameters, {weight.device}, "
            f"got {operand.device}"
        )
