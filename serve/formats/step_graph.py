"""A step-form session, and the tensors of one step that are bound by address."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from memmodel.export.metadata import Metadata, TensorSpec
from memmodel.serve.formats.onnx_session import Device
from memmodel.serve.formats.onnx_storage import Storage
from memmodel.serve.signature import Array, Signature, numpy_dtype

Bind = Callable[..., None]


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


class StepTensors:
    """What a step takes and gives besides the memory: input, length and output.

    Args:
        graph: the graph they belong to.
        binding: where to bind them.
        batch: number of rows.
        length: written slots before the first step.
        steps: number of steps.
        inputs: ``(B, steps, *input)`` where the cell takes them.

    Attributes:
        before: functions to call with the number of a step before it.
        after: likewise after it.
    """

    before: list[Callable[[int], None]]
    after: list[Callable[[int], None]]

    def __init__(
        self,
        graph: StepGraph,
        binding: Binding,
        batch: int,
        length: int,
        steps: int,
        inputs: Array | None,
    ) -> None:
        self._outputs: Storage | None = None
        self.before, self.after = [], []
        if inputs is not None:
            values = np.ascontiguousarray(np.swapaxes(inputs, 0, 1))
            self._take(binding, "input", values, graph.device)
        if (spec := graph.spec("length")) is not None:
            lengths = np.arange(length, length + steps, dtype=np.int64)
            per_row = np.repeat(lengths[:, None], batch, axis=1) if spec.shape else lengths
            self._take(binding, "length", per_row, graph.device)
        if (spec := graph.spec("output")) is not None:
            shape = tuple(size for size in spec.shape[1:] if isinstance(size, int))
            values = np.zeros((steps, batch, *shape), numpy_dtype(spec.dtype))
            self._outputs = Storage(values, graph.device)
            self.give(binding, "output", self._outputs)

    def give(self, binding: Binding, name: str, storage: Storage, first: int = 0) -> None:
        """Let step ``i`` write what the graph calls ``name`` to ``storage[first + i]``."""
        if storage.on_host:
            self.after.append(_Staged(binding.output, name, storage, first).keep)
        else:
            self.before.append(_InPlace(binding.output, name, storage, first).bind)

    def _take(self, binding: Binding, name: str, values: Array, device: Device) -> None:
        storage = Storage(values, device)
        if storage.on_host:
            self.before.append(_Staged(binding.input, name, storage).give)
        else:
            self.before.append(_InPlace(binding.input, name, storage).bind)

    def output(self) -> Array | None:
        """The head's output of all steps, ``(B, steps, ...)``, where there is a head."""
        if self._outputs is None:
            return None
        return np.ascontiguousarray(np.swapaxes(self._outputs.read(), 0, 1))


class _Staged:
    """One tensor per step, bound once, copied in or out: cheap on the CPU, where binding is not.

    Args:
        bind: binds inputs, or outputs.
        name: what the graph calls the tensor.
        storage: the tensors of all steps, ``(steps, *tensor)``.
        first: where the first step's is.
    """

    def __init__(self, bind: Bind, name: str, storage: Storage, first: int = 0) -> None:
        self._values = storage.read()[first:]
        self._stage = np.empty(self._values.shape[1:], self._values.dtype)
        bind(name, Storage(self._stage, Device("cpu")), self._stage.shape)

    def give(self, step: int) -> None:
        """Let the graph read the tensor of ``step``."""
        self._stage[...] = self._values[step]

    def keep(self, step: int) -> None:
        """Store what the graph wrote as the tensor of ``step``."""
        self._values[step] = self._stage


class _InPlace:
    """One tensor per step where the session computes, bound anew at each; see :class:`_Staged`."""

    def __init__(self, bind: Bind, name: str, storage: Storage, first: int = 0) -> None:
        self._bind, self._name, self._storage, self._first = bind, name, storage, first
        self._shape = storage.shape[1:]
        self._stride = storage.dtype.itemsize * int(np.prod(self._shape))

    def bind(self, step: int) -> None:
        """Let the graph read or write the tensor of ``step``."""
        offset = (self._first + step) * self._stride
        self._bind(self._name, self._storage, self._shape, offset)
