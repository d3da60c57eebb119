"""Refusals where recomputation would give a wrong gradient: mutated state, unreachable tensors."""

from collections.abc import Sequence
from typing import NoReturn, cast

import torch
from torch import Tensor
from torch.autograd.graph import Node

from memmodel._rollout.capture import CapturedCell, Cell
from memmodel._rollout.steps import Step


class MutationGuard:
    """Notices a cell that writes to what its recomputation reads.

    The cell runs on copies of its buffers, so that a refused cell leaves them unharmed.

    Args:
        captured: the cell.
        tensors: its tensors.
        memory: the memory that prefixes are views of.
        inputs: the rollout's inputs.
    """

    def __init__(
        self,
        captured: CapturedCell,
        tensors: Sequence[Tensor],
        memory: Tensor,
        inputs: Tensor | None,
    ) -> None:
        self._captured = captured
        self.tensors = [
            tensor.clone() if buffer else tensor.detach()
            for tensor, buffer in zip(tensors, captured.buffers, strict=True)
        ]
        self._versions = [_version(tensor) for tensor in self.tensors]
        self._memory, self._inputs = memory, inputs
        self._memory_version = _version(memory)
        self._inputs_version = None if inputs is None else _version(inputs)

    def watching(self, step: Step) -> Step:
        """``step``, which raises RuntimeError if it wrote where it must not."""

        def watched(prefix: Tensor, *inputs: Tensor) -> Tensor:
            before = _version(self._memory)
            slot = step(prefix, *inputs)
            self._check(before)
            return slot

        return watched

    def _check(self, memory_version: int) -> None:
        if _version(self._memory) != memory_version:
            raise RuntimeError(
                "cell must not modify the prefix it is given: clone it before writing to it"
            )
        if self._inputs is not None and _version(self._inputs) != self._inputs_version:
            raise RuntimeError("cell must not modify its inputs in place: clone them first")
        for name, tensor, version in zip(
            self._captured.names, self.tensors, self._versions, strict=True
        ):
            if _version(tensor) != version:
                self._refuse(name)

    def check_unwritten(self) -> None:
        """Raise RuntimeError if anything was written to since the guard was made.

        For kernels of ops, in which the rollout's own writes leave no trace in the version, but
        those of compiled code do.
        """
        self._check(self._memory_version)

    def check_installed(self) -> None:
        """Raise RuntimeError if the cell put another tensor in the place of a buffer."""
        replaced = self._captured.replaced_buffer(self.tensors)
        if replaced is not None:
            self._refuse(replaced)

    def check_contents(self, originals: Sequence[Tensor]) -> None:
        """Raise RuntimeError if a buffer no longer equals its original.

        For kernels of ops, for what :meth:`check_unwritten` does not see.
        """
        for name, own, original in zip(self._captured.names, self.tensors, originals, strict=True):
            if own.data_ptr() != original.data_ptr() and not _same(own, original):
                self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise RuntimeError(
            f"cell must not modify its buffers or parameters, but it modified {name!r}: "
            "backward runs the cell again and needs them as they were. Call cell.eval() if that "
            "stops it (BatchNorm, spectral norm), or use recompute=False"
        )


def refusing_writes(cell: Cell) -> Cell:
    """``cell``, which raises if it changes what it is given."""

    def step(*arguments: Tensor) -> Tensor:
        copies = [argument.clone() for argument in arguments]
        slot = cell(*arguments)
        if not all(map(_same, copies, arguments)):
            raise RuntimeError(
                "cell must not modify its prefix or inputs in place: clone them before writing"
            )
        return slot

    return step


def _version(tensor: Tensor) -> int:
    """Number of writes to ``tensor``; inference tensors, which nobody differentiates, have none."""
    return 0 if tensor.is_inference() else tensor._version


def _same(one: Tensor, other: Tensor) -> bool:
    """Equality in which NaN equals NaN."""
    return bool(_agree(one, other).all())


def _agree(one: Tensor, other: Tensor) -> Tensor:
    return (one == other) | (one.isnan() & other.isnan())


def check_repeats(slot: Tensor, written: Tensor, *, cast: bool) -> None:
    """Raise RuntimeError if backward made another slot than forward wrote.

    Kernels for training and for inference round differently, more so through many layers in low
    precision (or TF32), so a small difference must pass.

    Args:
        slot: what the cell made now.
        written: what it wrote in forward.
        cast: whether autocast is on.
    """
    if not written.numel():
        return
    difference = torch.where(_agree(slot, written), 0, slot - written).abs().max()
    size = written.abs().nan_to_num(nan=0.0).max()
    scale = size.clamp_min(torch.finfo(written.dtype).eps ** 0.5)
    precision = torch.finfo(torch.bfloat16 if cast else written.dtype).eps
    tolerance = 1e-6 if precision < 1e-12 else 1e-2 if precision < 1e-6 else 0.125
    if not difference <= scale * tolerance:
        raise RuntimeError(
            "cell made another slot in backward than in forward, so the gradient would be wrong: "
            "it depends on something that has changed, such as train() and eval(), a counter, or "
            "random numbers that are not PyTorch's. Keep that fixed until backward has run, pass "
            "it through inputs, or use recompute=False"
        )


def sequence_mark() -> int:
    """A number between those of the autograd nodes made before and after this call."""
    node = torch.empty((), requires_grad=True).view(()).grad_fn
    return cast(Node, node)._sequence_nr()


def check_gradients_reach(slot: Tensor, known: Sequence[Tensor], mark: int = 0) -> None:
    """Raise if the graph of ``slot`` holds anything but ``known`` leaves and nodes since ``mark``.

    Backward would silently leave out the gradient of whatever else is there.

    Raises:
        RuntimeError: the cell uses a tensor with gradients that is not one of its parameters.
    """
    leaves = {id(tensor) for tensor in known}
    if slot.grad_fn is None and slot.requires_grad and id(slot) not in leaves:
        refuse_unreachable(slot)
    stack, seen = [slot.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in leaves:
            refuse_unreachable(variable)
        if variable is None and node._sequence_nr() < mark:
            refuse_unreachable(None)
        stack += [following for following, _ in node.next_functions]


def refuse_unreachable(tensor: Tensor | None) -> NoReturn:
    """Raise RuntimeError about ``tensor``, or about one that is not known."""
    what = "a tensor computed outside it" if tensor is None else f"a {type(tensor).__name__}"
    shape = "" if tensor is None else f" of shape {tuple(tensor.shape)}"
    raise RuntimeError(
        f"cell computes with {what}{shape} that requires a gradient but is neither a parameter of "
        "the cell nor captured by it in a way rollout can follow, so its gradient would be lost. "
        "Register it (nn.Parameter, submodule) on an nn.Module cell, pass it through start or "
        "inputs, detach it, or use recompute=False"
    )
