"""One step of a cell and its gradient, each compiled once for every prefix length and batch."""

import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor, nn
from torch._dynamo import maybe_mark_dynamic
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from memmodel._rollout.steps import Step, StepGradient, StepInputs


class CompiledCell:
    """The compiled forms of a cell. They live as long as the cell, and do not keep it alive."""

    def __init__(self, cell: nn.Module) -> None:
        self._cell = ref(cell)
        self._step = _Compiled(_step)
        self._step_gradient = _Compiled(_step_gradient)

    @property
    def cell(self) -> nn.Module:
        """The cell itself."""
        cell = self._cell()
        if cell is None:
            raise RuntimeError("the cell of a compiled rollout no longer exists: keep it alive")
        return cell

    def step(self, tensors: Sequence[Tensor], *, compiled: bool) -> Step:
        """The cell, computing with ``tensors`` in place of its parameters and buffers."""
        cell = self.cell
        paths, tensors = _paths(cell), list(tensors)
        marked = False

        def step(prefix: Tensor, *inputs: Tensor) -> Tensor:
            nonlocal marked
            if not compiled or prefix.shape[1] == 1:  # a size that the compiler would specialise on
                return _step(cell, paths, tensors, prefix, *inputs)
            if not marked:
                _mark_sizes((prefix,), inputs)
                marked = True
            return self._step(cell, paths, tensors, prefix, *inputs)

        return step

    def step_gradient(
        self,
        tensors: Sequence[Tensor],
        wanted: Sequence[int],
        totals: Sequence[Tensor],
        *,
        compiled: bool,
    ) -> StepGradient:
        """One step of backward; adds the gradient of ``tensors[wanted[j]]`` to ``totals[j]``."""
        cell = self.cell
        paths, tensors, wanted, totals = _paths(cell), list(tensors), list(wanted), list(totals)
        marked = False

        def step_gradient(
            prefix: Tensor, inputs: StepInputs, grad_slot: Tensor, into: Sequence[Tensor]
        ) -> None:
            nonlocal marked
            # Two views of one buffer, one of them written to, would make the compiler rebuild all
            # of that buffer at every step.
            grad_slot = grad_slot.clone(memory_format=torch.contiguous_format)
            arguments = (cell, paths, tensors, wanted, prefix, inputs, grad_slot, into, totals)
            if not compiled or prefix.shape[1] == 1:
                _step_gradient(*arguments)
                return
            if not marked:
                _mark_sizes((prefix, into[0]), (grad_slot, *inputs, *into[1:]))
                marked = True
            self._step_gradient(*arguments)

        return step_gradient


class _Compiled:
    """A compiled function, or the plain one, with a warning, where it cannot be compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._plain = function
        # The compiler keeps compiled forms, and limits how many, by code object: one per cell.
        own = cast(FunctionType, function)
        own = FunctionType(own.__code__.replace(), own.__globals__, own.__name__)
        self._run: Callable[..., Any] = torch.compile(own, fullgraph=True)

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._run(*arguments)
        except (TorchDynamoException, InductorError) as error:
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(
                f"{type(arguments[0]).__name__} cannot be compiled and runs uncompiled: {reason}",
                stacklevel=2,
            )
            self._run = self._plain
            return self._plain(*arguments)


def _step(
    cell: nn.Module, paths: list[str], tensors: list[Tensor], prefix: Tensor, *inputs: Tensor
) -> Tensor:
    return torch.func.functional_call(
        cell, dict(zip(paths, tensors, strict=True)), (prefix, *inputs)
    )


def _step_gradient(
    cell: nn.Module,
    paths: list[str],
    tensors: list[Tensor],
    wanted: list[int],
    prefix: Tensor,
    inputs: StepInputs,
    grad_slot: Tensor,
    into: Sequence[Tensor],
    totals: list[Tensor],
) -> None:
    reads = (prefix, *inputs)
    differentiable = len(into)

    def step(*sources: Tensor) -> Tensor:
        installed = list(tensors)
        for i, source in zip(wanted, sources[differentiable:], strict=True):
            installed[i] = source
        return _step(cell, paths, installed, *sources[:differentiable], *reads[differentiable:])

    sources = (*reads[:differentiable], *(tensors[i] for i in wanted))
    slot, pull = torch.func.vjp(step, *sources)  # type: ignore[misc]  # two without has_aux
    for total, grad in zip((*into, *totals), pull(grad_slot.to(slot.dtype)), strict=True):
        total.add_(grad)


def _paths(cell: nn.Module) -> list[str]:
    """Where the tensors of a ``CapturedCell`` are, in its order."""
    return [
        *(path for path, _ in cell.named_parameters()),
        *(path for path, _ in cell.named_buffers()),
    ]


def _mark_sizes(prefixes: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
    """Tell the compiler that the batch and the prefix length change."""
    for tensor in (*prefixes, *rows):
        maybe_mark_dynamic(tensor, 0)
    for prefix in prefixes:
        maybe_mark_dynamic(prefix, 1)
