"""Old contents of rewritten slots, which take a memory back in time during backward.

What Sparse Access Memory does for sparse writes (Rae et al. 2016, arXiv:1610.09027, section 3.4 and
supplementary A): keep what each write replaced, and revert the writes as backward passes them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from memmodel.memory.content import Content
from memmodel.memory.region import Region


@dataclass(slots=True)
class _Record:
    region: Region
    other: Tensor  # the old content, or, while rolled back, the new one
    before: int  # the readers' version before the rewrite
    after: int


class Journal:
    """Rewrites of one memory's content, in program order.

    Content and readers' version always move together, so a view that autograd saved is accepted
    exactly while its content is what it was when saved.

    Args:
        content: what the rewrites change.
    """

    def __init__(self, content: Content) -> None:
        self._content = content
        self._records: list[_Record] = []
        self._applied = 0  # records whose rewrite the content shows
        self._task = -1  # the backward pass that rolled records back

    def rewrite(self, region: Region, value: Tensor, *, add: bool, seen: bool) -> int | None:
        """Replace or add to content.

        Args:
            region: what to rewrite.
            value: new content, or what to add.
            add: add instead of replacing.
            seen: whether the old content may have been read. If not, nothing can need it again.

        Returns:
            Number of the record to roll back to, or None where there is nothing to roll back.
        """
        if not seen:
            self._content.rewrite(region, value, add=add, seen=False)
            return None
        before, old = self._content.version, region.of(self._content.writer).clone()
        self._content.rewrite(region, value, add=add, seen=True)
        self._records.append(_Record(region, old, before, self._content.version))
        self._applied = len(self._records)
        return self._applied - 1

    def roll_back(self, number: int) -> None:
        """Bring back the content from before record ``number``, until this backward pass ends."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph=True through a SlotMemory whose slots were read and then rewritten: "
                "higher-order gradients need every content at once, so write new slots instead"
            )
        task = torch._C._current_graph_task_id()
        if self._applied == len(self._records):
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(_Restore(self))
        elif self._task != task:
            raise RuntimeError(
                "two backward passes at the same time through one SlotMemory with overwrite=True: "
                "run them one after the other"
            )
        while self._applied > number:
            record = self._records[self._applied - 1]
            self._move(record, expected=record.after, version=record.before)
            self._applied -= 1

    def restore(self) -> None:
        """Bring back the newest content."""
        while self._applied < len(self._records):
            record = self._records[self._applied]
            self._move(record, expected=record.before, version=record.after)
            self._applied += 1

    def _move(self, record: _Record, *, expected: int, version: int) -> None:
        if self._content.version != expected:
            raise RuntimeError(
                "a SlotMemory was changed after the forward pass whose backward is running, by a "
                "rewrite after detach_() or by modifying a view of it in place: run backward before"
            )
        record.other = self._content.swap(record.region, record.other, version=version)


class _Restore:
    """Restores a journal when a backward pass ends, also when it raises.

    The engine calls it after a pass that succeeds, and only drops it after one that raises.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal: Journal | None = journal

    def __call__(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.restore()

    def __del__(self) -> None:
        self()
