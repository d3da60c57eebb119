"""A runner as a model of the Open Inference Protocol."""

import uuid
from typing import Any

import numpy as np

from memmodel.serve.http.batcher import Batcher
from memmodel.serve.http.imports import (
    DataPlane,
    InferOutput,
    InferRequest,
    InferResponse,
    InvalidInput,
    Model,
)
from memmodel.serve.http.limits import Limits
from memmodel.serve.runner import Runner
from memmodel.serve.signature import Array

# NumPy has no bfloat16, so such models speak float32 here.
_DATATYPES = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "FP32"}


class ServedModel(Model):
    """Takes ``start``, ``steps`` and, where the cell takes them, ``inputs``.

    ``steps`` is an INT64 tensor with one element, or a request parameter of that name.

    Args:
        name: the model's name in URLs.
        runner: the model.
        batcher: rolls requests out.
        limits: what is accepted.
    """

    def __init__(self, name: str, runner: Runner, batcher: Batcher, limits: Limits) -> None:
        super().__init__(name)
        self._signature = runner.signature
        self._batcher, self._limits = batcher, limits
        self._datatype = _DATATYPES[self._signature.dtype.name]
        self.ready = True

    async def predict(
        self, payload: InferRequest, headers: dict[str, str] | None = None
    ) -> InferResponse:
        """Answer one request.

        Raises:
            InvalidInput: the request is malformed or exceeds a limit.
        """
        start, steps, inputs = self._arguments(payload)
        results = await self._batcher.submit(start, steps, inputs)
        for output in payload.request_outputs or ():
            if output.name not in results:
                raise InvalidInput(f"output {output.name!r} is none of {[*results]}")
        return InferResponse(
            # The protocol lets a request leave its id out, kserve does not let a response.
            response_id=payload.id or str(uuid.uuid4()),
            model_name=self.name,
            infer_outputs=[self._output(name, value) for name, value in results.items()],
            from_grpc=payload.from_grpc,
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )

    def get_input_types(self) -> list[dict[str, Any]]:
        """Inputs, for the model's metadata."""
        slot, step = _free(self._signature.slot_shape), _free(self._signature.input_shape)
        types = [
            {"name": "start", "datatype": self._datatype, "shape": [-1, -1, *slot]},
            {"name": "steps", "datatype": "INT64", "shape": [1]},
        ]
        if self._signature.takes_inputs:
            types.append({"name": "inputs", "datatype": self._datatype, "shape": [-1, -1, *step]})
        return types

    def get_output_types(self) -> list[dict[str, Any]]:
        """Outputs, for the model's metadata."""
        slot = _free(self._signature.slot_shape)
        types = [{"name": "memory", "datatype": self._datatype, "shape": [-1, -1, *slot]}]
        if self._signature.has_output:
            types.append({"name": "output", "datatype": self._datatype, "shape": [-1, -1, -1]})
        return types

    def _arguments(self, request: InferRequest) -> tuple[Array, int, Array | None]:
        tensors = {tensor.name: tensor for tensor in request.inputs}
        known = [
            "start",
            "steps",
            *(["inputs"] if self._signature.takes_inputs is not False else []),
        ]
        unknown = [tensor.name for tensor in request.inputs if tensor.name not in known]
        if unknown or len(tensors) != len(request.inputs):
            raise InvalidInput(f"inputs must be {known}, each once, got {unknown or [*tensors]}")
        if "start" not in tensors:
            raise InvalidInput("input 'start' is missing")
        try:
            steps = self._steps(tensors.get("steps"), request)
            start = self._numbers(tensors["start"])
            self._check_sizes(start, steps)
            start = self._signature.check_start(start, steps)
            inputs = self._numbers(tensors["inputs"]) if "inputs" in tensors else None
            inputs = self._signature.check_inputs(inputs, len(start), steps)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(str(error)) from error
        return start, steps, inputs

    def _steps(self, tensor: Any, request: InferRequest) -> int:
        if tensor is None:
            steps = (request.parameters or {}).get("steps")
            steps = getattr(steps, "int64_param", steps)  # gRPC wraps parameters
            if not isinstance(steps, int):
                raise ValueError("'steps' must be given, as an INT64 tensor [1] or as a parameter")
        else:
            if tensor.datatype not in ("INT64", "INT32") or np.prod(tensor.shape) != 1:
                raise ValueError(
                    f"'steps' must be one INT64, got {tensor.datatype} {list(tensor.shape)}"
                )
            steps = tensor.data[0] if tensor.data else tensor.as_numpy().reshape(-1)[0]
            if isinstance(steps, bool) or not isinstance(steps, int | np.integer):
                raise ValueError(f"'steps' must be one INT64, got {steps!r}")
            steps = int(steps)
        least = 1 if self._signature.has_output else 0  # kserve cannot send an empty output
        if not least <= steps <= self._limits.steps:
            raise ValueError(f"'steps' must lie in {least}..{self._limits.steps}, got {steps}")
        return steps

    def _numbers(self, tensor: Any) -> Array:
        if tensor.datatype != self._datatype:
            raise ValueError(f"{tensor.name!r} must be {self._datatype}, got {tensor.datatype}")
        if min(tensor.shape, default=0) < 0:
            raise ValueError(f"{tensor.name!r} must have a shape, got {list(tensor.shape)}")
        array = tensor.as_numpy()
        if array.dtype.kind != "f":
            raise ValueError(f"{tensor.name!r} must hold numbers")
        return array

    def _check_sizes(self, start: Array, steps: int) -> None:
        """Refuse what would take too much memory before any of it is allocated."""
        if start.ndim and not start.shape[0]:
            raise ValueError("'start' must have at least one row, got none")
        if start.ndim and start.shape[0] > self._limits.rows:
            raise ValueError(f"'start' has {start.shape[0]} rows, allowed are {self._limits.rows}")
        if start.ndim >= 2 and start.shape[1]:
            size = start.nbytes // start.shape[1] * (start.shape[1] + steps)
            if size > self._limits.result_bytes:
                raise ValueError(
                    f"the memory would take {size} bytes, allowed are {self._limits.result_bytes}"
                )

    def _output(self, name: str, value: Array) -> InferOutput:
        if value.dtype.name == "bfloat16":
            value = value.astype(np.float32)
        output = InferOutput(name=name, shape=list(value.shape), datatype=self._datatype)
        output.set_data_from_numpy(value, binary_data=True)
        return output


class CheckedDataPlane(DataPlane):
    """Says that a body is malformed where kserve's decoding fails in other ways."""

    def decode(self, body: Any, headers: Any, *args: Any, **kwargs: Any) -> Any:
        """Decode a request.

        Raises:
            InvalidInput: the body is malformed.
        """
        try:
            return super().decode(body, headers, *args, **kwargs)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"malformed request: {error}") from error


def _free(shape: tuple[int, ...] | None) -> list[int]:
    return [-1] if shape is None else list(shape)
