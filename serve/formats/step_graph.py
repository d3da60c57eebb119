"""A step-form session, and the tensors of one step that are bound by address."""

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from memmodel.export.metadata import Metadata, TensorSpec
from memmodel.serve.formats.onnx_session import Device
from memmodel.serve.formats.onnx_storage import Storage
from memmodel.serve.signature import Array, Signature, numpy_dtype


@dataclass(frozen=True)
class StepGraph:
    """A session that makes one slot per call.

    Attributes:
        session: the loaded graph.
        device: where its tensors live.
        metadata: what the artifact says about itself.
        signature: shapes and dtype of its tensors.
    """

    session: ort.InferenceSession
    device: Device
    metadata: Metadata
    signature: Signature

    @property
    def slot_shape(self) -> tuple[int, ...]:
        """Shape of one slot."""
        return self.metadata.slot_shape

    def binding(self) -> "Binding":
        """New bindings; each thread needs its own."""
        return Binding(self.session.io_binding(), self.device)

    def spec(self, name: str) -> TensorSpec | None:
        """The input or output of that name, if there is one."""
        specs = (*self.metadata.inputs, *self.metadata.outputs)
        return next((spec for spec in specs if spec.name == name), None)


class Binding:
    """Binds tensors by address, so that parts of a :class:`Storage` need no copies."""

    def __init__(self, binding: ort.IOBinding, device: Device) -> None:
        self.raw = binding
        self._place = (device.kind, device.index)

    def input(self, name: str, storage: Storage, shape: tuple[int, ...], offset: int = 0) -> None:
        """Bind the input ``name`` to ``storage`` from byte ``offset`` on."""
        self.raw.bind_input(
            name, *self._place, storage.element_type, shape, storage.address + offset
        )

    def output(self, name: str, storage: Storage, shape: tuple[int, ...], offset: int = 0) -> None:
        """Bind the output ``name`` likewise."""
        self.raw.bind_output(
            name, *self._place, storage.element_type, shape, storage.address + offset
        )


class Sequence:
    """One tensor per step, stored one after the other.

    Args:
        values: ``(steps, *tensor)``.
        device: where the session wants it.
    """

    def __init__(self, values: Array, device: Device) -> None:
        self.storage = Storage(np.ascontiguousarray(values), device)
        self.shape = values.shape[1:]
        self.stride = values.dtype.itemsize * int(np.prod(self.shape))


class StepTensors:
    """What a step takes and gives besides the memory: input, length and output.

    Args:
        graph: the graph they belong to.
        batch: number of rows.
        length: written slots before the first step.
        steps: number of steps.
        inputs: ``(B, steps, *input)`` where the cell takes them.
    """

    def __init__(
        self, graph: StepGraph, batch: int, length: int, steps: int, inputs: Array | None
    ) -> None:
        self._inputs: dict[str, Sequence] = {}
        self._outputs: dict[str, Sequence] = {}
        if inputs is not None:
            self._inputs["input"] = Sequence(np.swapaxes(inputs, 0, 1), graph.device)
        if (spec := graph.spec("length")) is not None:
            lengths = np.arange(length, length + steps, dtype=np.int64)
            per_row = np.repeat(lengths[:, None], batch, axis=1) if spec.shape else lengths
            self._inputs["length"] = Sequence(per_row, graph.device)
        if (spec := graph.spec("output")) is not None:
            shape = tuple(size for size in spec.shape[1:] if isinstance(size, int))
            values = np.zeros((steps, batch, *shape), numpy_dtype(spec.dtype))
            self._outputs["output"] = Sequence(values, graph.device)

    def bind(self, binding: Binding, step: int) -> None:
        """Bind the tensors of one step."""
        for name, values in self._inputs.items():
            binding.input(name, values.storage, values.shape, step * values.stride)
        for name, values in self._outputs.items():
            binding.output(name, values.storage, values.shape, step * values.stride)

    def output(self) -> Array | None:
        """The head's output of all steps, ``(B, steps, ...)``, where there is a head."""
        if "output" not in self._outputs:
            return None
        return np.ascontiguousarray(np.swapaxes(self._outputs["output"].storage.read(), 0, 1))
