"""Streaming: a memory that stays between calls, advanced a step or a few at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from memmodel.serve.formats import Model, Stream
from memmodel.serve.signature import Array, Arrays, check_count


@dataclass(frozen=True)
class Snapshot:
    """The memory of a session at one moment; plain arrays, safe to store.

    Attributes:
        rows: per row, its written slots ``(length, *slot)``.
    """

    rows: tuple[Array, ...]


@dataclass
class _Group:
    """Rows of equal length, which take their steps together."""

    rows: Array
    stream: Stream


class Session:
    """Rows of memory that live between calls.

    A new session is empty: :meth:`feed` it the slots to start from, then :meth:`step`. ``feed``
    also works later, for slots that were observed rather than predicted. Rows are independent:
    :meth:`reset` empties some of them, and they can be fed a new start of any length while the
    others go on. Rows of different lengths take their steps in separate calls of the model, one
    per distinct length, with the same numbers.

    A session is used by one thread at a time.

    Args:
        model: the loaded model.
        batch: number of rows.

    Raises:
        TypeError: ``batch`` is no integer.
        ValueError: ``batch`` is less than 1, or the artifact fixes the number of steps.
    """

    def __init__(self, model: Model, batch: int) -> None:
        check_count("batch", batch, least=1)
        fixed = dict(model.signature.fixed)
        if fixed:
            raise ValueError(
                f"a session needs a model without fixed sizes, this one fixes {fixed}: "
                f"export the step form"
            )
        self._model = model
        self._batch = batch
        self._groups: list[_Group] = []

    @property
    def length(self) -> Array:
        """Written slots per row, ``(B,)`` int64."""
        length = np.zeros(self._batch, np.int64)
        for group in self._groups:
            length[group.rows] = group.stream.length
        return length

    @property
    def memory(self) -> Array:
        """A copy of the memory, ``(B, longest length, *slot)``; shorter rows end in zeros."""
        rows = self.snapshot().rows
        longest = max(map(len, rows))
        memory = np.zeros((self._batch, longest, *rows[0].shape[1:]), rows[0].dtype)
        for target, row in zip(memory, rows, strict=True):
            target[: len(row)] = row
        return memory

    def feed(self, slots: ArrayLike, rows: Sequence[int] | None = None) -> None:
        """Append known slots to the memory.

        Args:
            slots: ``(B, L, *slot)``, or ``(len(rows), L, *slot)``.
            rows: the rows they are for; all unless given.

        Raises:
            TypeError: ``slots`` are no numbers.
            ValueError: ``slots`` have a wrong shape, or a row is named twice.
            IndexError: there is no such row.
        """
        chosen = self._check_rows(rows)
        values = self._model.signature.check_slots(slots, "slots")
        if len(values) != len(chosen):
            raise ValueError(f"slots must have {len(chosen)} rows, got {len(values)}")
        if rows is not None or len(self._groups) > 1:
            self._regroup(chosen, values)
        else:
            if not self._groups:
                self._groups = [_Group(chosen, self._model.stream(self._batch))]
            self._groups[0].stream.feed(values)

    def step(self, inputs: ArrayLike | None = None) -> Arrays:
        """Let the model write one slot in every row.

        Args:
            inputs: ``(B, *input)`` where the cell takes an input.

        Returns:
            ``slot (B, *slot)`` and, where there is a head, ``output (B, ...)``.

        Raises:
            TypeError: ``inputs`` are no numbers.
            ValueError: ``inputs`` have a wrong shape.
            RuntimeError: a row is empty.
        """
        values = None if inputs is None else np.asarray(inputs)
        if values is not None and not values.ndim:
            raise ValueError(f"inputs must have shape ({self._batch}, ...), got {values.shape}")
        results = self.rollout(1, None if values is None else values[:, None])
        one = {"slot": results["slots"][:, 0]}
        return one if "output" not in results else {**one, "output": results["output"][:, 0]}

    def rollout(self, steps: int, inputs: ArrayLike | None = None) -> Arrays:
        """Let the model write ``steps`` slots in every row.

        Args:
            steps: how many, ≥ 1.
            inputs: ``(B, steps, *input)`` where the cell takes inputs.

        Returns:
            ``slots (B, steps, *slot)`` and, where there is a head, ``output (B, steps, ...)``.

        Raises:
            TypeError: ``steps`` is no integer, or ``inputs`` are no numbers.
            ValueError: an argument breaks a rule.
            RuntimeError: a row is empty.
        """
        check_count("steps", steps, least=1)
        values = self._model.signature.check_inputs(inputs, self._batch, steps)
        if empty := np.flatnonzero(self.length == 0).tolist():
            raise RuntimeError(f"rows {empty} are empty: feed() them the slots to start from")
        parts: dict[str, list[Array]] = {}
        for group in self._groups:
            before = group.stream.length
            taken = None if values is None else values[group.rows]
            output = group.stream.advance(steps, taken)
            parts.setdefault("slots", []).append(group.stream.read(before))
            if output is not None:
                parts.setdefault("output", []).append(output)
        order = np.argsort(np.concatenate([group.rows for group in self._groups]))
        return {name: np.concatenate(part)[order] for name, part in parts.items()}

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Empty rows; the others keep their memory. They have to be fed before the next step.

        Args:
            rows: the rows to empty; all unless given.

        Raises:
            ValueError: a row is named twice.
            IndexError: there is no such row.
        """
        if rows is None:
            self._groups = []
        else:
            self._regroup(self._check_rows(rows), None)

    def snapshot(self) -> Snapshot:
        """Copy the memory."""
        dtype, slot_shape = self._model.signature.dtype, self._model.signature.slot_shape
        rows = [np.empty((0, *(slot_shape or ())), dtype)] * self._batch
        for group in self._groups:
            for row, memory in zip(group.rows, group.stream.read(), strict=True):
                rows[row] = memory
        return Snapshot(tuple(rows))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, also one of another session or process with this model.

        Raises:
            ValueError: the snapshot has another number of rows.
        """
        if len(snapshot.rows) != self._batch:
            raise ValueError(
                f"snapshot must have {self._batch} rows like the session, got {len(snapshot.rows)}"
            )
        check = self._model.signature.check_slots
        self._open([check(row[None], "snapshot")[0] if len(row) else row for row in snapshot.rows])

    def _regroup(self, rows: Array, slots: Array | None) -> None:
        """Append ``slots`` to some rows, or empty them, and group rows by length anew."""
        memory = list(self.snapshot().rows)
        for i, row in enumerate(rows):
            if slots is None:
                memory[row] = memory[row][:0]
            else:
                memory[row] = (
                    np.concatenate([memory[row], slots[i]]) if len(memory[row]) else slots[i]
                )
        self._open(memory)

    def _open(self, memory: list[Array]) -> None:
        lengths = np.array([len(row) for row in memory])
        self._groups = []
        for length in np.unique(lengths[lengths > 0]):
            rows = np.flatnonzero(lengths == length)
            stream = self._model.stream(len(rows))
            stream.feed(np.stack([memory[row] for row in rows]))
            self._groups.append(_Group(rows, stream))

    def _check_rows(self, rows: Sequence[int] | None) -> Array:
        if rows is None:
            return np.arange(self._batch)
        chosen = np.asarray(rows)
        if not chosen.size:
            chosen = chosen.astype(np.int64)
        if chosen.dtype.kind not in "iu":  # a mask would pass for the rows 0 and 1
            raise TypeError(f"rows must be row numbers, got {rows!r}")
        if chosen.ndim != 1 or len(np.unique(chosen)) != len(chosen):
            raise ValueError(f"rows must be distinct row numbers, got {rows!r}")
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= self._batch):
            raise IndexError(f"rows must lie in 0..{self._batch - 1}, got {rows!r}")
        return chosen
