"""ONNX files that make one slot per call, run in place on one preallocated memory.

How the memory lies decides the speed, since past a few hundred slots a step is one or two passes
over it. Measured on two cores, attention over D=256, 1000 steps, against eager PyTorch in place
(70, 357 and 2077 ms at batch 1, 8 and 64):

* Rows apart by the full capacity, the rest masked: every call reads twice as much as it needs.
* Slots first, the prefix bound by address: no mask and any cell, 35, 256 and 1619 ms; the rows of
  one slot lie side by side, so a read of one row jumps through memory.
* Rows apart by little more than their length, spread out as they grow (:mod:`onnx_buffer`): 37-45
  and 190-205 ms, and with a few rows at a time, so that they stay in the cache for all their
  steps, 1500 ms at batch 64.

So ``state="buffer"`` files, which take a mask, use the third layout, and ``state="prefix"`` files,
which need the exact prefix, the second.
"""

from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np

from memmodel.export.metadata import Metadata
from memmodel.serve.formats.model import Stream
from memmodel.serve.formats.onnx_buffer import BufferStream, rows_per_block
from memmodel.serve.formats.onnx_prefix import PrefixStream, slots_first
from memmodel.serve.formats.onnx_session import open_session
from memmodel.serve.formats.step_graph import StepGraph
from memmodel.serve.signature import Array, Arrays, Signature


class OnnxStep:
    """Runs a step-form ONNX file.

    Args:
        path: the file.
        metadata: what it says about itself.
        device: "auto", "cpu", "cuda" or "cuda:N".
        threads: CPU threads for one call.
    """

    def __init__(self, path: Path, metadata: Metadata, device: str, threads: int | None) -> None:
        self._path = path
        self._masked = metadata.state == "buffer"
        self._load = partial(_load, path, metadata, device, threads)
        self._graph = self._load(str(path))
        self._lock = Lock()
        self._slots_first: StepGraph | None = None
        self.signature = self._graph.signature
        self.device = str(self._graph.device)
        self.description = f"{path.name} (ONNX, step form, {metadata.state})"

    def rollout(self, start: Array, steps: int, inputs: Array | None) -> Arrays:
        """Write ``steps`` slots after ``start``."""
        if self._masked:
            return self._rollout_in_blocks(start, steps, inputs)
        batch, k0 = start.shape[:2]
        stream = PrefixStream(self._prefix_graph(batch), batch, k0 + steps)
        stream.feed(start)
        output = stream.advance(steps, inputs)
        return _results(stream.read(), output)

    def stream(self, batch: int) -> Stream:
        """An empty memory for ``batch`` rows."""
        if self._masked:
            return BufferStream.empty(self._graph, batch)
        return PrefixStream(self._prefix_graph(batch), batch)

    def _prefix_graph(self, batch: int) -> StepGraph:
        """The graph for slots-first memory; with a single row both layouts are the same."""
        if batch == 1:
            return self._graph
        with self._lock:
            if self._slots_first is None:
                self._slots_first = self._load(slots_first(self._path))
            return self._slots_first

    def _rollout_in_blocks(self, start: Array, steps: int, inputs: Array | None) -> Arrays:
        batch, k0 = start.shape[:2]
        memory = np.zeros((batch, k0 + steps, *start.shape[2:]), start.dtype)
        block = rows_per_block(self._graph, memory[0].nbytes) or batch
        outputs = []
        for first in range(0, batch, block):
            rows = slice(first, first + block)
            stream = BufferStream(self._graph, memory[rows])
            stream.feed(start[rows])
            outputs.append(stream.advance(steps, None if inputs is None else inputs[rows]))
            stream.finish()
        heads = [output for output in outputs if output is not None]
        return _results(memory, np.concatenate(heads) if heads else None)


def _load(
    path: Path, metadata: Metadata, device: str, threads: int | None, model: str | bytes
) -> StepGraph:
    session, where = open_session(model, path, device, threads)
    return StepGraph(session, where, metadata, Signature.of(metadata))


def _results(memory: Array, output: Array | None) -> Arrays:
    return {"memory": memory} if output is None else {"memory": memory, "output": output}
