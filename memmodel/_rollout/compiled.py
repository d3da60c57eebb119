"""One step of a cell and its gradient, each compiled once for every prefix length and batch."""

import math
import sys
from collections.abc import Sequence
from weakref import ref

import torch
from torch import Tensor, nn
from torch._dynamo import maybe_mark_dynamic

from memmodel._rollout.dynamo import CompiledFunction
from memmodel._rollout.steps import Step, StepGradient, StepInputs

_Hooks = tuple[tuple[int, ...], ...]


class CompiledCell:
    """The compiled forms of a cell. They live as long as the cell, and do not keep it alive."""

    def __init__(self, cell: nn.Module) -> None:
        self._cell = ref(cell)
        self._forms: dict[_Hooks, _Forms] = {}

    @property
    def cell(self) -> nn.Module:
        """The cell itself."""
        cell = self._cell()
        if cell is None:
            raise RuntimeError("the cell of a compiled rollout no longer exists: keep it alive")
        return cell

    def _compiled(self) -> "_Forms":
        """The forms for the hooks that the cell has now: the compiler does not look for new."""
        hooks = _hooks(self.cell)
        if hooks not in self._forms:
            # Hooks come with ever new numbers: forms for those of the past would pile up.
            self._forms = {known: forms for known, forms in self._forms.items() if not known}
            self._forms[hooks] = _Forms()
        return self._forms[hooks]

    def step(self, tensors: Sequence[Tensor], *, compiled: bool) -> Step:
        """The cell, computing with ``tensors`` in place of its parameters and buffers."""
        cell = self.cell
        paths, tensors = _paths(cell), list(tensors)
        forms = self._compiled()
        sizes = _Sizes(forms.step_lengths)

        def step(prefix: Tensor, *inputs: Tensor) -> Tensor:
            if not compiled or prefix.shape[1] == 1:  # a size that the compiler would specialise on
                return _step(cell, paths, tensors, prefix, *inputs)
            sizes.mark((prefix,), inputs)
            return forms.step(cell, paths, tensors, prefix, *inputs)

        return step

    def step_gradient(
        self,
        tensors: Sequence[Tensor],
        wanted: Sequence[int],
        totals: list[Tensor],
        *,
        compiled: bool,
    ) -> StepGradient:
        """One step of backward; adds the gradient of ``tensors[wanted[j]]`` to ``totals[j]``."""
        cell = self.cell
        paths, tensors, wanted = _paths(cell), list(tensors), list(wanted)
        forms = self._compiled()
        sizes = _Sizes(forms.step_gradient_lengths)

        def step_gradient(
            prefix: Tensor, inputs: StepInputs, grad_slot: Tensor, into: Sequence[Tensor]
        ) -> None:
            # Two views of one buffer, one of them written to, would make the compiler rebuild all
            # of that buffer at every step.
            grad_slot = grad_slot.clone(memory_format=torch.contiguous_format)
            arguments = (cell, paths, tensors, wanted, prefix, inputs, grad_slot, into, totals)
            if not compiled or prefix.shape[1] == 1:
                totals[:] = _step_gradient(*arguments)
                return
            sizes.mark((prefix, into[0]), (grad_slot, *inputs, *into[1:]))
            totals[:] = forms.step_gradient(*arguments)

        return step_gradient


class _Forms:
    """A step and its gradient, and the prefix lengths that each was compiled for."""

    def __init__(self) -> None:
        self.step = CompiledFunction(_step)
        self.step_gradient = CompiledFunction(_step_gradient)
        self.step_lengths, self.step_gradient_lengths = _Lengths(), _Lengths()


def _hooks(cell: nn.Module) -> _Hooks:
    """The numbers of the hooks that a call of the cell runs, by module."""
    everywhere = torch.nn.modules.module
    tables = [everywhere._global_forward_pre_hooks, everywhere._global_forward_hooks]
    for module in cell.modules():
        tables += [module._forward_pre_hooks, module._forward_hooks]
    return tuple((i, *table) for i, table in enumerate(tables) if table)


def spread_slots(memory: Tensor) -> Tensor:
    """Copy of ``memory`` ``(B, N, *slot)`` with room between slots, for compiled code to add to.

    Where slots touch, inductor walks a slice of them as ``k * prod(slot)`` elements, but computes
    what it adds slot by slot: two loops, the first of which fills a temporary of the slice's size.
    """
    batch, slots, *slot = memory.shape
    width = math.prod(slot)
    room = 64 // memory.element_size()  # keeps every slot at the start of a cache line
    copy = memory.new_empty(batch, slots, width + room)[..., :width].view(memory.shape)
    return copy.copy_(memory)


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
) -> list[Tensor]:
    reads = (prefix, *inputs)
    differentiable = len(into)

    def step(*sources: Tensor) -> Tensor:
        installed = list(tensors)
        for i, source in zip(wanted, sources[differentiable:], strict=True):
            installed[i] = source
        return _step(cell, paths, installed, *sources[:differentiable], *reads[differentiable:])

    sources = (*reads[:differentiable], *(tensors[i] for i in wanted))
    slot, pull = torch.func.vjp(step, *sources)  # type: ignore[misc]  # two without has_aux
    grads = pull(grad_slot.to(slot.dtype))
    for total, grad in zip(into, grads, strict=False):
        total.add_(grad)
    # Not in place: inductor has matrix products make new totals, which it would then copy back.
    return [total + grad for total, grad in zip(totals, grads[differentiable:], strict=True)]


def _paths(cell: nn.Module) -> list[str]:
    """Where the tensors of a ``CapturedCell`` are, in its order."""
    return [
        *(path for path, _ in cell.named_parameters()),
        *(path for path, _ in cell.named_buffers()),
    ]


class _Sizes:
    """Tells the compiler of one rollout's tensors that batch and prefix length change.

    Where it has compiled for a size, a mark would only cost time: those are left out for prefix
    lengths between the ``seen`` ones. Outside, new code may be needed: inductor's own at 4096.
    """

    def __init__(self, seen: "_Lengths") -> None:
        self._seen = seen
        self._first = True

    def mark(self, prefixes: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        """Mark the batch of all, and the prefix length of ``prefixes``."""
        if not self._seen.add(prefixes[0].shape[1]) and not self._first:
            return
        self._first = False
        for tensor in (*prefixes, *rows):
            maybe_mark_dynamic(tensor, 0)
        for prefix in prefixes:
            maybe_mark_dynamic(prefix, 1)


class _Lengths:
    """The span of the prefix lengths that a function was called with."""

    def __init__(self) -> None:
        self._low, self._high = sys.maxsize, 0

    def add(self, length: int) -> bool:
        """Whether ``length`` makes the span longer."""
        if self._low <= length <= self._high:
            return False
        self._low, self._high = min(self._low, length), max(self._high, length)
        return True
