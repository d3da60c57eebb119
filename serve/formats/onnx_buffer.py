"""The memory of a ``state="buffer"`` step graph: rows packed tightly, spread out as they grow."""

import ctypes
import os

import numpy as np

from memmodel.serve.formats.onnx_storage import Storage
from memmodel.serve.formats.step_graph import StepGraph, StepTensors
from memmodel.serve.signature import Array

_FIRST_SLOTS = 64
# What one core caches privately (L2) on current server CPUs.
_CACHE_BYTES = 2 << 20


def rows_per_block(graph: StepGraph, row_bytes: int) -> int | None:
    """How many rows are rolled out together; None: all.

    A step reads the whole memory of its rows, so on a CPU a few rows that stay in the cache for all
    their steps are faster than all rows at once. Two per core at least share the weights' reads.
    """
    if graph.device.kind != "cpu":
        return None
    cores = graph.session.get_session_options().intra_op_num_threads or _cores()
    return max(2 * cores, cores * _CACHE_BYTES // max(1, row_bytes))


class BufferStream:
    """Batch-first memory that the graph updates in place at the index it is given.

    Every call reads the whole capacity, so the capacity follows the length closely: the rows lie
    ``capacity`` slots apart in one allocation, and when they are full they are moved apart by a
    sixteenth of their length. Moving costs O(1) slots per step and saves reading what is not there.
    When the capacity reaches the allocation, the allocation *is* the memory ``(B, N, *slot)``.

    Args:
        graph: the step graph.
        memory: zeros ``(B, N, *slot)`` to work in, contiguous.
    """

    def __init__(self, graph: StepGraph, memory: Array) -> None:
        self._graph = graph
        self._batch = memory.shape[0]
        self._binding = graph.binding()
        self._slot = int(np.prod(graph.slot_shape))
        self.length = 0
        self._allocate(memory)

    @classmethod
    def empty(cls, graph: StepGraph, batch: int) -> "BufferStream":
        """A stream that allocates for itself."""
        shape = (batch, _FIRST_SLOTS, *graph.slot_shape)
        return cls(graph, np.zeros(shape, graph.signature.dtype))

    def feed(self, slots: Array) -> None:
        """Append slots ``(B, L, *slot)``."""
        end = self.length + slots.shape[1]
        self._reserve(end)
        if end > self._capacity:
            self._spread(end)
        with self._storage.edit() as memory:
            rows = self._rows(memory, self._capacity)
            rows[:, self.length : end] = slots.reshape(self._batch, -1, self._slot)
        self.length = end

    def advance(self, steps: int, inputs: Array | None) -> Array | None:
        """Let the graph write ``steps`` slots."""
        self._reserve(self.length + steps)
        tensors = StepTensors(self._graph, self._binding, self._batch, self.length, steps, inputs)
        run, binding = self._graph.session.run_with_iobinding, self._binding.raw
        for step in range(steps):
            if self.length == self._capacity:
                self._spread(self.length + 1)
            for prepare in tensors.before:
                prepare(step)
            run(binding)
            for keep in tensors.after:
                keep(step)
            self.length += 1
        return tensors.output()

    def read(self, first: int = 0) -> Array:
        """Copy the written slots from ``first`` on."""
        rows = self._rows(self._storage.read(), self._capacity)[:, first : self.length]
        return rows.reshape(self._batch, -1, *self._graph.slot_shape).copy()

    def finish(self) -> None:
        """Bring the memory that was passed in up to date; it has to be full."""
        if self._capacity < self._slots:
            self._spread(self._slots)
        self._storage.read()

    def _reserve(self, slots: int) -> None:
        """Make room for ``slots`` slots per row, at least doubling what there is."""
        if slots <= self._slots:
            return
        old = self.read()
        shape = (self._batch, max(slots, 2 * self._slots), *self._graph.slot_shape)
        self._allocate(np.zeros(shape, old.dtype))
        length, self.length = self.length, 0
        if length:
            self.feed(old)

    def _allocate(self, memory: Array) -> None:
        self._slots = memory.shape[1]
        self._storage = Storage(memory, self._graph.device)
        # Elsewhere the rows cannot be moved without passing through the host.
        self._bind(1 if self._graph.device.kind == "cpu" else self._slots)

    def _spread(self, needed: int) -> None:
        """Move the rows apart, so that they have room for ``needed`` slots and some more."""
        capacity = min(self._slots, needed + max(16, needed // 16))
        with self._storage.edit() as memory:
            old, new = self._rows(memory, self._capacity), self._rows(memory, capacity)
            written = self.length * old[0, :1].nbytes
            for row in reversed(range(self._batch)):
                if row:  # NumPy would copy what overlaps twice
                    ctypes.memmove(new[row].ctypes.data, old[row].ctypes.data, written)
                # What lay there belongs to other rows, and masking an infinity would not hide it.
                new[row, self.length :] = 0
        self._bind(capacity)

    def _rows(self, memory: Array, capacity: int) -> Array:
        elements = memory.reshape(-1)[: self._batch * capacity * self._slot]
        return elements.reshape(self._batch, capacity, self._slot)

    def _bind(self, capacity: int) -> None:
        self._capacity = capacity
        shape = (self._batch, capacity, *self._graph.slot_shape)
        self._binding.input("memory", self._storage, shape)
        self._binding.output("memory_out", self._storage, shape)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
