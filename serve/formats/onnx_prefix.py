"""The memory of a ``state="prefix"`` step graph: slots first, each prefix bound by its address."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from memmodel.serve.formats.onnx_storage import Storage
from memmodel.serve.formats.step_graph import StepGraph, StepTensors
from memmodel.serve.signature import Array

_FIRST_SLOTS = 64
_SLOTS = "memmodel_slots"


def slots_first(path: Path) -> bytes:
    """Let a graph take its prefix as ``(slots, batch, *slot)``.

    In that layout every prefix of a growing memory is contiguous, and the next slot lies right
    behind it. ONNX Runtime's optimiser merges the transposition into the consumers where it can.

    Args:
        path: an ONNX file with an input ``prefix (batch, slots, *slot)``.

    Returns:
        The changed model, serialized; external weights stay where they are.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    prefix = next(value for value in graph.input if value.name == "prefix")
    sizes = prefix.type.tensor_type.shape.dim
    batch, slots = onnx.TensorShapeProto.Dimension(), onnx.TensorShapeProto.Dimension()
    batch.CopyFrom(sizes[0])
    slots.CopyFrom(sizes[1])
    sizes[0].CopyFrom(slots)
    sizes[1].CopyFrom(batch)
    prefix.name = _SLOTS
    order = [1, 0, *range(2, len(sizes))]
    graph.node.insert(0, onnx.helper.make_node("Transpose", [_SLOTS], ["prefix"], perm=order))
    return model.SerializeToString()


class PrefixStream:
    """Slots-first memory ``(N, B, *slot)``, doubled when it is full.

    Args:
        graph: the step graph, as :func:`slots_first` changed it unless there is one row only.
        batch: number of rows.
        slots: slots to allocate at first.
    """

    def __init__(self, graph: StepGraph, batch: int, slots: int = _FIRST_SLOTS) -> None:
        self._graph = graph
        self._batch = batch
        self._binding = graph.binding()
        self._slots = slots
        self._slot_shape = (batch, *graph.slot_shape)
        self._storage = self._allocate()
        self.length = 0

    def feed(self, slots: Array) -> None:
        """Append slots ``(B, L, *slot)``."""
        end = self.length + slots.shape[1]
        self._reserve(end)
        with self._storage.edit() as memory:
            memory[self.length : end] = np.swapaxes(slots, 0, 1)
        self.length = end

    def advance(self, steps: int, inputs: Array | None) -> Array | None:
        """Let the graph write ``steps`` slots."""
        self._reserve(self.length + steps)
        tensors = StepTensors(self._graph, self._binding, self._batch, self.length, steps, inputs)
        tensors.give(self._binding, "slot", self._storage, self.length)
        run, binding = self._graph.session.run_with_iobinding, self._binding.raw
        name, shape = self._graph_input()
        for step in range(steps):
            self._binding.input(name, self._storage, shape(self.length))
            for prepare in tensors.before:
                prepare(step)
            run(binding)
            for keep in tensors.after:
                keep(step)
            self.length += 1
        return tensors.output()

    def read(self, first: int = 0) -> Array:
        """Copy the written slots from ``first`` on."""
        return np.swapaxes(self._storage.read()[first : self.length], 0, 1).copy()

    def _graph_input(self) -> tuple[str, Callable[[int], tuple[int, ...]]]:
        """What the graph calls the prefix, and its shape at a length."""
        slot_shape = self._graph.slot_shape
        if self._batch == 1:  # the same bytes, as the unchanged graph wants them
            return "prefix", lambda length: (1, length, *slot_shape)
        return _SLOTS, lambda length: (length, self._batch, *slot_shape)

    def _reserve(self, slots: int) -> None:
        """Make room for ``slots`` slots, at least doubling what there is."""
        if slots <= self._slots:
            return
        written = self._storage.read()[: self.length]
        self._slots = max(slots, 2 * self._slots)
        self._storage = self._allocate()
        with self._storage.edit() as memory:
            memory[: self.length] = written

    def _allocate(self) -> Storage:
        memory = np.zeros((self._slots, *self._slot_shape), self._graph.signature.dtype)
        return Storage(memory, self._graph.device)
