"""Autograd nodes of :class:`memmodel.SlotMemory`: one gradient buffer, handed along a token.

The memory's content is outside autograd. Every write and read takes the memory's newest token and
makes the next one, so backward meets the nodes in exactly the reverse order of the program. A token
is shaped like the memory but has storage for one element; its *gradient* is the one gradient
buffer of a backward pass. The first node that backward meets with something to add allocates the
buffer, each read adds its gradient into its slots, each write takes its slots' gradient out.

Two facts make adding in place safe. Tokens never leave this package, so nothing but the next node
can hold the buffer. And a slot's part of the buffer is dead once its first write has taken it out:
no earlier node can have touched a slot that was not written yet.

Nodes hold no state that backward changes, so repeated and partial backward passes are independent.
Under ``create_graph`` nothing is changed in place, which costs O(N) per node.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from memmodel.memory.journal import Journal
from memmodel.memory.region import Region

_Grad = Tensor | None  # undefined gradients are not materialised


def new_token(memory: Tensor) -> Tensor:
    """Token before the first node: ``memory``'s shape, one element of storage."""
    return memory.new_empty(()).expand(memory.shape)


def direct(node: type[Function]) -> Callable[..., Any]:
    """``node.apply`` without its wrapper in Python: 5.0 µs per call instead of 6.7.

    The wrapper is there for torch.func transforms, which callers must therefore refuse.
    """
    return super(Function, node).apply  # type: ignore[misc]


class Read(Function):
    """View of a region."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, readers: Tensor, region: Region) -> tuple[Tensor, Tensor]:
        """``readers``: the content under the version that readers see."""
        ctx.set_materialize_grads(False)
        ctx.region, ctx.shape = region, readers.shape
        # detach, since a token that is a differentiable view makes autograd copy its gradient.
        return token.detach(), region.of(readers)

    @staticmethod
    def backward(ctx: Any, buffer: _Grad, grad: _Grad) -> tuple[_Grad, None, None]:
        """Add ``grad`` to the region of the buffer."""
        return _added(buffer, grad, ctx.region, ctx.shape), None, None


class Write(Function):
    """First write of a region."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, value: Tensor, writer: Tensor, region: Region) -> Tensor:
        """``writer``: the content under the version that readers do not see."""
        ctx.set_materialize_grads(False)
        ctx.region = region
        region.of(writer).copy_(value)
        return token.detach()

    @staticmethod
    def backward(ctx: Any, buffer: _Grad) -> tuple[_Grad, _Grad, None, None]:
        """Take the region's gradient out of the buffer."""
        return buffer, _taken(buffer, ctx.region), None, None


class WriteRead(Function):
    """A :class:`Write` and the :class:`Read` after it, at little more than the cost of one."""

    @staticmethod
    def forward(
        ctx: Any,
        token: Tensor,
        value: Tensor,
        writer: Tensor,
        region: Region,
        readers: Tensor,
        read: Region,
    ) -> tuple[Tensor, Tensor]:
        """Write ``region``, then view ``read``."""
        ctx.set_materialize_grads(False)
        ctx.region, ctx.read, ctx.shape = region, read, readers.shape
        region.of(writer).copy_(value)
        return token.detach(), read.of(readers)

    @staticmethod
    def backward(
        ctx: Any, buffer: _Grad, grad: _Grad
    ) -> tuple[_Grad, _Grad, None, None, None, None]:
        """What the two nodes would do, the read first."""
        buffer = _added(buffer, grad, ctx.read, ctx.shape)
        return buffer, _taken(buffer, ctx.region), None, None, None, None


class Gather(Function):
    """Copy of the slots that an index tensor names."""

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, readers: Tensor, dim: int, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``index`` is one-dimensional."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(index)
        ctx.dim, ctx.shape = dim, readers.shape
        return token.detach(), readers.index_select(dim, index)

    @staticmethod
    def backward(ctx: Any, buffer: _Grad, grad: _Grad) -> tuple[_Grad, None, None, None]:
        """Add ``grad`` to the named slots of the buffer."""
        if grad is None:
            return buffer, None, None, None
        if buffer is None:
            buffer = grad.new_zeros(ctx.shape)
        (index,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return buffer.index_add(ctx.dim, index, grad), None, None, None
        return buffer.index_add_(ctx.dim, index, grad), None, None, None


class Rewrite(Function):
    """Write of a region that has been written before."""

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, value: Tensor, journal: Journal, region: Region, seen: bool
    ) -> Tensor:
        """``seen``: the old content may have been read, so backward must bring it back."""
        ctx.set_materialize_grads(False)
        ctx.region, ctx.journal = region, journal
        ctx.record = journal.rewrite(region, value, add=False, seen=seen)
        return token.detach()

    @staticmethod
    def backward(ctx: Any, buffer: _Grad) -> tuple[_Grad, _Grad, None, None, None]:
        """Take the region's gradient out of the buffer; the old content gets none from here on."""
        if ctx.record is not None:
            ctx.journal.roll_back(ctx.record)
        part = _taken(buffer, ctx.region)
        if buffer is None or part is None:
            return None, None, None, None, None
        if torch.is_grad_enabled():
            return ctx.region.replaced(buffer, torch.zeros_like(part)), part, None, None, None
        grad = part.clone() if ctx.needs_input_grad[1] else None
        part.zero_()
        return buffer, grad, None, None, None


class Add(Function):
    """Addition to a region that has been written before."""

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, value: Tensor, journal: Journal, region: Region, seen: bool
    ) -> Tensor:
        """``seen``: as in :class:`Rewrite`."""
        ctx.set_materialize_grads(False)
        ctx.region, ctx.journal = region, journal
        ctx.record = journal.rewrite(region, value, add=True, seen=seen)
        return token.detach()

    @staticmethod
    def backward(ctx: Any, buffer: _Grad) -> tuple[_Grad, _Grad, None, None, None]:
        """Copy the region's gradient out of the buffer; the old content has the same gradient."""
        if ctx.record is not None:
            ctx.journal.roll_back(ctx.record)
        part = _taken(buffer, ctx.region)
        if part is not None and not torch.is_grad_enabled():
            part = part.clone()
        return buffer, part, None, None, None


def _added(buffer: _Grad, grad: _Grad, region: Region, shape: torch.Size) -> _Grad:
    """The buffer with ``grad`` added to ``region``: in place, except under ``create_graph``."""
    if grad is None:
        return buffer
    if buffer is None:
        buffer = grad.new_zeros(shape)
    part = region.of(buffer)
    if torch.is_grad_enabled():
        return region.replaced(buffer, part + grad)
    part.add_(grad)
    return buffer


def _taken(buffer: _Grad, region: Region) -> _Grad:
    return None if buffer is None else region.of(buffer)
