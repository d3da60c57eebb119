"""A memory's content as eager programs keep it: written in place, linear in memory."""

from typing import Any

import torch
from torch import Tensor

from memmodel.memory.content import Content
from memmodel.memory.journal import Journal
from memmodel.memory.layout import Layout
from memmodel.memory.nodes import Add, Gather, Read, Rewrite, Write, WriteRead, direct, new_token
from memmodel.memory.region import Region
from memmodel.memory.written import WrittenSlots
from memmodel.ops.rules import refuse_tangents

_read, _gather, _write, _write_read = map(direct, (Read, Gather, Write, WriteRead))
_rewrite, _add = map(direct, (Rewrite, Add))


class EagerStore:
    """Content outside autograd, and the token that links its writes and reads for backward.

    A node is made only where it has something to do: not under ``no_grad``, not for a first write
    of a constant, not for a read of constants.

    Loops mostly read the whole prefix right after each append. Once they did, the next append makes
    both nodes in one and keeps the view until it is asked for, or until it is out of date.

    Attributes:
        has_history: whether the content depends on tensors that require grad.
    """

    def __init__(self, layout: Layout) -> None:
        self._content = Content(layout)
        self._journal = Journal(self._content)
        self._token: Tensor | None = None
        self.has_history = False
        self._constants = WrittenSlots()  # known to carry no gradient
        # The backward pass that this memory was made in, -1 outside of one.
        self._task = torch._C._current_graph_task_id()
        self._newest: Region | None = None  # all up to and with the region written last
        self._prepared: Tensor | None = None  # view of `_newest`
        self._prepares = False

    @property
    def tensor(self) -> Tensor:
        """The whole content, written or not, without gradient."""
        return self._content.readers

    @property
    def in_foreign_backward(self) -> bool:
        """Whether a backward pass that did not make this memory is running: a recomputation."""
        task = torch._C._current_graph_task_id()
        return task != -1 and task != self._task

    def write(self, value: Tensor, region: Region) -> None:
        """Write a region for the first time."""
        refuse_tangents("a SlotMemory", value)
        content = self._content
        content.check_untouched()
        if not (value.requires_grad and torch.is_grad_enabled()):
            region.of(content.writer).copy_(value)
            self._constants.add(region.start, region.stop)
            self._newest = self._prepared = None
            return
        self._newest = newest = Region(region.dim, 0, region.stop, single=False)
        # A view that nobody asked for: this loop reads in other ways.
        self._prepares = self._prepares and self._prepared is None
        token = self._linked()
        if self._prepares:
            self._token, self._prepared = _write_read(
                token, value, content.writer, region, content.readers, newest
            )
        else:
            self._token, self._prepared = _write(token, value, content.writer, region), None

    def rewrite(self, value: Tensor, region: Region, *, add: bool, seen: bool) -> None:
        """Replace, or add to, what was written before; ``seen``: it may have been read."""
        refuse_tangents("a SlotMemory", value)
        self._content.check_untouched()
        self._newest = self._prepared = None
        if not torch.is_grad_enabled():
            value = value.detach()
        if self._token is None and not value.requires_grad:
            self._content.rewrite(region, value, add=add, seen=seen)
            return
        self._constants = WrittenSlots()
        node: Any = _add if add else _rewrite
        # Also under no_grad and inference_mode: gradients must stop at the new content, and what
        # other slots depend on must not be lost.
        with torch.inference_mode(False), torch.enable_grad():
            self._token = node(self._linked(), value, self._journal, region, seen)

    def read(self, region: Region) -> Tensor:
        """View of a region."""
        content = self._content
        content.check_untouched()
        if (
            self._token is None
            or not torch.is_grad_enabled()
            or self._constants.first_missing_between(region.start, region.stop) is None
        ):
            return region.of(content.readers)
        if self.in_foreign_backward:
            # A recomputation (torch.utils.checkpoint) rebuilds a part of the graph that was there:
            # its nodes branch off, and the program goes on from where it was.
            return _read(self._token, content.readers, region)[1]
        if region == self._newest:
            self._prepares = True
            if self._prepared is not None:
                view, self._prepared = self._prepared, None
                return view
        self._token, view = _read(self._linked(), content.readers, region)
        return view

    def gather(self, dim: int, index: Tensor) -> Tensor:
        """Copy of the slots named by a one-dimensional index."""
        content = self._content
        content.check_untouched()
        if self._token is None or not torch.is_grad_enabled():
            return content.readers.index_select(dim, index)
        token, slots = _gather(self._linked(), content.readers, dim, index)
        if not self.in_foreign_backward:
            self._token = token
        return slots

    def detach_(self) -> None:
        """Cut the content off from its history."""
        self._token = self._newest = self._prepared = None
        self.has_history = False
        self._journal = Journal(self._content)  # the old one belongs to the old graph
        self._constants = WrittenSlots()

    def _linked(self) -> Tensor:
        """The token that the next node takes."""
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                "a SlotMemory cannot be used inside torch.func transforms (grad, vjp, vmap, ...): "
                "use memmodel.rollout or memmodel.slot_write there"
            )
        if self._token is None:
            self.has_history = True
            return new_token(self._content.readers)
        return self._token
