"""Run an ONNX file for the self-check."""

from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import torch
from torch import Tensor

from memmodel.export.errors import ExportError
from memmodel.export.metadata import Metadata
from memmodel.export.parity import Call, Outputs, rollout_by_steps

Array = np.ndarray
_Run = Callable[[list[str], dict[str, Array]], list[Array]]


def artifact_rollout(path: Path, metadata: Metadata) -> Callable[..., Outputs]:
    """The rollout that the file makes, in either form."""
    call = _named(path, metadata)
    if metadata.form == "step":
        assert metadata.state is not None
        return rollout_by_steps(call, metadata.state, per_row=True)

    def rollout(start: Tensor, steps: int, inputs: Tensor | None) -> Outputs:
        given = {} if inputs is None else {"inputs": inputs}
        return call({"start": start, "steps": torch.tensor(steps), **given})

    return rollout


def _named(path: Path, metadata: Metadata) -> Call:
    run = _reference(path) if metadata.dtype == "bfloat16" else _onnxruntime(path)
    names = [spec.name for spec in metadata.outputs]

    def call(tensors: Mapping[str, Tensor]) -> Outputs:
        results = run(names, {name: _to_numpy(tensor) for name, tensor in tensors.items()})
        return {name: _to_torch(value) for name, value in zip(names, results, strict=True)}

    return call


def _onnxruntime(path: Path) -> _Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exception types share no public base class
        raise ExportError(f"ONNX Runtime refuses the graph: {error}") from error
    run: _Run = session.run
    return run


def _reference(path: Path) -> _Run:
    """ONNX's own evaluator: ONNX Runtime has no bfloat16 kernels for the CPU."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load(path))

    def run(names: list[str], feeds: dict[str, Array]) -> list[Array]:
        return list(evaluator.run(names, feeds))

    return run


def _to_numpy(tensor: Tensor) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _to_torch(array: Array) -> Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
