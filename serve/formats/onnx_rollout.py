"""ONNX files that hold the whole rollout."""

import ctypes
import math
from pathlib import Path

import numpy as np
import onnxruntime as ort

from memmodel.export.metadata import Metadata
from memmodel.serve.formats.model import RolloutStream, Stream
from memmodel.serve.formats.onnx_session import open_session
from memmodel.serve.formats.onnx_storage import ELEMENT_TYPES
from memmodel.serve.signature import Array, Arrays, Signature, numpy_dtype


class OnnxRollout:
    """Runs a rollout-form ONNX file: one call makes all steps.

    Args:
        path: the file.
        metadata: what it says about itself.
        device: "auto", "cpu", "cuda" or "cuda:N".
        threads: CPU threads for one call.
    """

    def __init__(self, path: Path, metadata: Metadata, device: str, threads: int | None) -> None:
        self._session, where = open_session(str(path), path, device, threads)
        self._inputs = [spec.name for spec in metadata.inputs]
        self._outputs = {spec.name: numpy_dtype(spec.dtype) for spec in metadata.outputs}
        self.signature = Signature.of(metadata)
        self.device = str(where)
        self.description = f"{path.name} (ONNX, rollout form)"

    def rollout(self, start: Array, steps: int, inputs: Array | None) -> Arrays:
        """Write ``steps`` slots after ``start``."""
        values = {"start": start, "steps": np.array(steps, np.int64), "inputs": inputs}
        binding = self._session.io_binding()
        held = [np.ascontiguousarray(values[name]) for name in self._inputs]
        for name, value in zip(self._inputs, held, strict=True):
            # By address, since bfloat16 arrays are unknown to ONNX Runtime.
            binding.bind_input(
                name, "cpu", 0, ELEMENT_TYPES[value.dtype.name], value.shape, value.ctypes.data
            )
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        results = zip(self._outputs.items(), binding.get_outputs(), strict=True)
        return {name: _to_numpy(value, dtype) for (name, dtype), value in results}

    def stream(self, batch: int) -> Stream:
        """An empty memory for ``batch`` rows."""
        return RolloutStream(self, batch)


def _to_numpy(value: ort.OrtValue, dtype: np.dtype) -> Array:
    if dtype.name != "bfloat16":
        return value.numpy()
    shape = tuple(value.shape())
    content = ctypes.string_at(value.data_ptr(), dtype.itemsize * math.prod(shape))
    return np.frombuffer(bytearray(content), dtype).reshape(shape)
