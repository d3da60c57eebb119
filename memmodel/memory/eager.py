"""A memory's content as eager programs keep it: written in place, linear in memory."""

import torch
from torch import Tensor

from memmodel.memory.content import Content
from memmodel.memory.journal import Journal
from memmodel.memory.nodes import Add, Gather, Read, Rewrite, Write, new_token
from memmodel.memory.region import Region
from memmodel.memory.written import WrittenSlots


class EagerStore:
    """Content outside autograd, and the token that links its writes and reads for backward.

    A node is made only where it has something to do: not under ``no_grad``, not for a first write
    of a constant, not for a read of constants.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        self._content = Content(shape, dtype=dtype, device=device)
        self._journal = Journal(self._content)
        self._token: Tensor | None = None
        self._constants = WrittenSlots()  # known to carry no gradient
        # The backward pass that this memory was made in, -1 outside of one.
        self._task = torch._C._current_graph_task_id()

    @property
    def tensor(self) -> Tensor:
        """The whole content, written or not, without gradient."""
        return self._content.readers

    @property
    def has_history(self) -> bool:
        """Whether the content depends on tensors that require grad."""
        return self._token is not None

    @property
    def in_foreign_backward(self) -> bool:
        """Whether a backward pass that did not make this memory is running: a recomputation."""
        task = torch._C._current_graph_task_id()
        return task != -1 and task != self._task

    def write(self, value: Tensor, region: Region) -> None:
        """Write a region for the first time."""
        self._content.check_untouched()
        if value.requires_grad and torch.is_grad_enabled():
            self._token = Write.apply(self._linked(), value, self._content.writer, region)
        else:
            region.of(self._content.writer).copy_(value)
            self._constants.add(region.start, region.stop)

    def rewrite(self, value: Tensor, region: Region, *, add: bool, seen: bool) -> None:
        """Replace, or add to, what was written before; ``seen``: it may have been read."""
        self._content.check_untouched()
        if not torch.is_grad_enabled():
            value = value.detach()
        if self._token is None and not value.requires_grad:
            self._content.rewrite(region, value, add=add, seen=seen)
            return
        self._constants = WrittenSlots()
        node = Add if add else Rewrite
        # Also under no_grad: gradients must stop at the new content.
        with torch.enable_grad():
            self._token = node.apply(self._linked(), value, self._journal, region, seen)

    def read(self, region: Region) -> Tensor:
        """View of a region."""
        self._content.check_untouched()
        if (
            self._token is None
            or not torch.is_grad_enabled()
            or self._constants.first_missing_between(region.start, region.stop) is None
        ):
            return region.of(self._content.readers)
        view, token = Read.apply(self._token, self._content.readers, region)
        return self._threaded(view, token)

    def gather(self, dim: int, index: Tensor) -> Tensor:
        """Copy of the slots named by a one-dimensional index."""
        self._content.check_untouched()
        if self._token is None or not torch.is_grad_enabled():
            return self._content.readers.index_select(dim, index)
        slots, token = Gather.apply(self._token, self._content.readers, dim, index)
        return self._threaded(slots, token)

    def detach_(self) -> None:
        """Cut the content off from its history."""
        self._token = None
        self._journal = Journal(self._content)  # the old one belongs to the old graph
        self._constants = WrittenSlots()

    def _linked(self) -> Tensor:
        return new_token(self._content.readers) if self._token is None else self._token

    def _threaded(self, result: Tensor, token: Tensor) -> Tensor:
        # A recomputation (torch.utils.checkpoint) rebuilds a part of the graph that was there: its
        # nodes branch off, and the program goes on from where it was.
        if not self.in_foreign_backward:
            self._token = token
        return result
