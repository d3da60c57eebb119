"""The rules for a rollout's arguments and for what a cell returns."""

from typing import Any

import torch
from torch import Tensor

from memmodel.spec import spec_of


def check_arguments(cell: Any, start: Any, steps: Any, inputs: Any) -> None:
    """Raise TypeError or ValueError that names the argument, the rule and what was received."""
    if isinstance(cell, type):
        raise TypeError(f"cell must be an nn.Module or a function, got the class {cell.__name__}")
    if not callable(cell):
        raise TypeError(f"cell must be an nn.Module or a function, got {type(cell).__name__}")
    if not isinstance(start, Tensor):
        raise TypeError(f"start must be a Tensor, got {type(start).__name__}")
    if start.ndim < 2 or start.shape[1] < 1:
        raise ValueError(
            f"start must be (B, k0, *slot) with at least one slot, got shape {tuple(start.shape)}"
        )
    if isinstance(steps, bool) or not isinstance(steps, int | torch.SymInt):
        raise TypeError(f"steps must be an int, got {type(steps).__name__}")
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    if inputs is not None:
        _check_inputs(start, steps, inputs)


def _check_inputs(start: Tensor, steps: int | torch.SymInt, inputs: Any) -> None:
    if not isinstance(inputs, Tensor):
        raise TypeError(f"inputs must be a Tensor or None, got {type(inputs).__name__}")
    if inputs.ndim < 2 or inputs.shape[0] != start.shape[0] or inputs.shape[1] != steps:
        raise ValueError(
            f"inputs must be (B, steps, ...) = ({start.shape[0]}, {steps}, ...), "
            f"got shape {tuple(inputs.shape)}"
        )
    if inputs.device != start.device:
        raise ValueError(f"inputs must be on start's device {start.device}, got {inputs.device}")


def check_spec(cell: Any, start: Tensor, inputs: Tensor | None) -> None:
    """Raise ValueError unless ``start`` and ``inputs`` have the shapes that the cell's spec tells.

    Any floating-point dtype passes for another one: who converts a cell converts what it takes.
    """
    spec = spec_of(cell)
    if spec is None:
        return
    _check_told("start", "k0", start, spec.slot, cell)
    if (inputs is None) != (spec.inputs is None):
        rule = "None" if spec.inputs is None else f"(B, steps, {_sizes(spec.inputs.shape)}"
        given = "None" if inputs is None else f"shape {tuple(inputs.shape)}"
        raise ValueError(f"inputs must be {rule} for {type(cell).__name__}, got {given}")
    if inputs is not None:
        _check_told("inputs", "steps", inputs, spec.inputs, cell)


def _check_told(name: str, length: str, value: Tensor, told: Any, cell: Any) -> None:
    rule = f"{name} must be (B, {length}, {_sizes(told.shape)} for {type(cell).__name__}"
    if value.shape[2:] != told.shape or value.ndim < 2:
        one = name == "start" and value.shape[1:] == told.shape
        hint = ": for a single first slot x, pass x[:, None]" if one else ""
        raise ValueError(f"{rule}, got shape {tuple(value.shape)}{hint}")
    kinds = [told.dtype, value.dtype]
    if told.dtype != value.dtype and not all(kind.is_floating_point for kind in kinds):
        raise ValueError(f"{rule} and {told.dtype}, got {value.dtype}")


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape)) + ")"


def check_slot(slot: Any, memory: Tensor, *, cast: bool) -> None:
    """Raise unless the cell returned a slot of ``memory``.

    Args:
        slot: what the cell returned.
        memory: the memory ``(B, N, *slot)``.
        cast: whether another floating dtype is allowed, as autocast makes it.
    """
    if not isinstance(slot, Tensor):
        raise TypeError(f"cell must return a Tensor, got {type(slot).__name__}")
    expected = memory.shape[:1] + memory.shape[2:]
    if slot.shape != expected:
        raise ValueError(
            f"cell must return slots (B, *slot) = {tuple(expected)} to fit start, "
            f"got shape {tuple(slot.shape)}"
        )
    if slot.dtype != memory.dtype and not (
        cast and slot.is_floating_point() and memory.is_floating_point()
    ):
        raise ValueError(
            f"cell must return slots of start's dtype {memory.dtype}, got {slot.dtype}"
        )
    if slot.device != memory.device:
        raise ValueError(
            f"cell must return slots on start's device {memory.device}, got {slot.device}"
        )
