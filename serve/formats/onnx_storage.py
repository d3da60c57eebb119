"""Bytes at a fixed address that ONNX Runtime reads and writes without copies."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnxruntime as ort

from memmodel.serve.formats.onnx_session import Device
from memmodel.serve.signature import Array

# onnx.TensorProto's numbers: IOBinding takes them where NumPy has no such dtype (bfloat16).
ELEMENT_TYPES = {"float32": 1, "int64": 7, "float16": 10, "float64": 11, "bfloat16": 16}


class Storage:
    """An array that lives where the session computes.

    Parts of it are bound by address, which :class:`onnxruntime.OrtValue` has no views for. On the
    CPU the given array itself is used; elsewhere it is copied there.

    Args:
        array: initial content, contiguous.
        device: where to keep it.
    """

    def __init__(self, array: Array, device: Device) -> None:
        self._host = array
        self._value: ort.OrtValue | None = None
        self.shape, self.dtype = array.shape, array.dtype
        self.element_type = ELEMENT_TYPES[array.dtype.name]
        self.address: int = array.ctypes.data
        if device.kind != "cpu":
            self._value = ort.OrtValue.ortvalue_from_numpy(self._bytes(), device.kind, device.index)
            self.address = self._value.data_ptr()

    @property
    def on_host(self) -> bool:
        """Whether the given array itself is used."""
        return self._value is None

    def read(self) -> Array:
        """The content: the array itself on the CPU, else a copy of it."""
        if self._value is not None:
            self._bytes()[...] = self._value.numpy()
        return self._host

    @contextmanager
    def edit(self) -> Iterator[Array]:
        """The content, to be changed by the caller."""
        yield self.read()
        if self._value is not None:
            self._value.update_inplace(self._bytes())

    def _bytes(self) -> Array:
        return self._host.reshape(-1).view(np.uint8)
