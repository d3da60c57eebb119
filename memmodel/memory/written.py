"""Which slots have been written."""

from collections.abc import Iterable


class WrittenSlots:
    """A set of slots that is cheap while slots are written in order, and right when they are not.

    Attributes:
        prefix: every slot below it has been written.
        end: one past the last written slot.
    """

    def __init__(self) -> None:
        self.prefix = 0
        self.end = 0
        self._beyond: set[int] = set()  # written slots above `prefix`

    @property
    def has_gaps(self) -> bool:
        """Whether a slot below ``end`` has not been written."""
        return self.prefix != self.end

    def first_missing(self, slots: Iterable[int]) -> int | None:
        """The first of ``slots`` that has not been written."""
        return next((i for i in slots if i >= self.prefix and i not in self._beyond), None)

    def first_missing_between(self, start: int, stop: int) -> int | None:
        """The first slot in [start, stop) that has not been written."""
        if stop <= self.prefix:
            return None
        return self.first_missing(range(max(start, self.prefix), stop))

    def first_written_between(self, start: int, stop: int) -> int | None:
        """The first slot in [start, stop) that has been written."""
        if start >= self.end or start >= stop:
            return None
        if start < self.prefix:
            return start
        return next((i for i in range(start, stop) if i in self._beyond), None)

    def add(self, start: int, stop: int) -> None:
        """Note that the slots in [start, stop) have been written."""
        if start == self.end == self.prefix:  # in order
            self.prefix = self.end = stop
            return
        self.end = max(self.end, stop)
        if start > self.prefix:
            self._beyond.update(range(start, stop))
            return
        self.prefix = max(self.prefix, stop)
        while self._beyond and self.prefix in self._beyond:
            self.prefix += 1
        if self.prefix == self.end:
            self._beyond.clear()

    def mask(self) -> list[bool]:
        """Per slot below ``end``, whether it has been written."""
        return [i < self.prefix or i in self._beyond for i in range(self.end)]
