"""One PyTorch module as an ONNX model."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnxscript.optimizer import optimize
from onnxscript.values import Opset
from torch import Tensor, nn

import memmodel.ops  # noqa: F401  (registers torch.ops.memmodel)
from memmodel.export import masked
from memmodel.export.errors import ExportError
from memmodel.export.onnx_recurrent import translation
from memmodel.export.quiet import quiet
from memmodel.export.recurrent import whole_recurrent_calls

FIRST_OPSET = 18  # what the exporter of torch.onnx produces natively
LAST_OPSET = 24
_TENSOR_SCATTER = 24

_Dims = dict[int, str]


def trace(
    module: nn.Module,
    args: Sequence[Tensor],
    *,
    inputs: Sequence[tuple[str, _Dims]],
    outputs: Sequence[str],
    opset: int,
) -> onnx.ModelProto:
    """Export ``module``.

    Args:
        module: takes ``args`` and returns a tuple.
        args: example tensors.
        inputs: name and free dimensions ``{dimension: name}`` of each argument.
        outputs: names of the results.
        opset: ONNX opset, 18 to 24.

    Raises:
        ExportError: the module cannot be expressed in ONNX with these free dimensions.
    """
    free = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(dims, free) for _, dims in inputs)
    translations = {
        torch.ops.memmodel.slot_write.default: _slot_write(opset),
        torch.ops.memmodel_export.recurrent.default: translation(opset),
        torch.ops.aten.scalar_tensor.default: _scalar(opset),
        **masked.translations(opset, args[0].dtype),
    }
    try:
        with quiet(), whole_recurrent_calls():
            program = torch.onnx.export(
                module.eval(),
                tuple(args),
                input_names=[name for name, _ in inputs],
                output_names=list(outputs),
                opset_version=opset,
                dynamo=True,
                dynamic_shapes=shapes,
                external_data=False,
                verbose=False,
                custom_translation_table=translations,
            )
    except Exception as error:
        raise ExportError(f"torch.onnx cannot express {_name(module)}: {_cause(error)}") from error
    assert program is not None
    # The exporter leaves large constants unfolded; rearranged weights are worth their size.
    optimize(program.model, input_size_limit=sys.maxsize, output_size_limit=sys.maxsize)
    model = program.model_proto
    got = {entry.domain: entry.version for entry in model.opset_import}
    if got != {"": opset}:
        raise ExportError(f"torch.onnx gave opsets {got} for {_name(module)}, wanted {opset} only")
    for value, (_, dims) in zip(model.graph.input, inputs, strict=True):
        for dimension, name in dims.items():
            value.type.tensor_type.shape.dim[dimension].dim_param = name
    return model


def _slot_write(opset: int) -> Any:
    """``torch.ops.memmodel.slot_write`` of one slot in ONNX."""
    op = Opset("", opset)

    def tensor_scatter(memory: Any, value: Any, index: Any) -> Any:
        return op.TensorScatter(memory, value, index, axis=1)

    def scatter_nd(memory: Any, value: Any, index: Any) -> Any:
        slot_axis = op.Constant(value_ints=[1])
        batch = op.Squeeze(op.Shape(index))
        rows = op.Range(op.Constant(value_int=0), batch, op.Constant(value_int=1))
        where = op.Concat(op.Unsqueeze(rows, slot_axis), op.Unsqueeze(index, slot_axis), axis=1)
        return op.ScatterND(memory, where, op.Squeeze(value, slot_axis))

    return tensor_scatter if opset >= _TENSOR_SCATTER else scatter_nd


def _scalar(opset: int) -> Any:
    """``aten::scalar_tensor`` at full precision: torch.onnx rounds Python's floats to float32."""
    op = Opset("", opset)

    def scalar_tensor(
        s: float, dtype: int = 1, layout: str = "", device: str = "", pin_memory: bool = False
    ) -> Any:
        value = np.array(s, dtype=onnx.helper.tensor_dtype_to_np_dtype(dtype))
        return op.Constant(value=ir.tensor(value, dtype=ir.DataType(dtype)))

    return scalar_tensor


def _name(module: nn.Module) -> str:
    inner = getattr(module, "cell", module)
    return type(inner).__name__


def _cause(error: BaseException) -> BaseException:
    """What went wrong first; torch.onnx wraps it in pages of general advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
