"""The ONNX rollout: a Loop around the cell's own graph."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper

from memmodel.export.metadata import TensorSpec

_TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
}


def build_rollout(
    cell: onnx.ModelProto,
    head: onnx.ModelProto | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> onnx.ModelProto:
    """Build the graph ``start, steps[, inputs] -> memory[, output]``.

    The memory is carried by the Loop and grows by one slot per iteration; the weights stay outside
    the body. So the file's size does not depend on the number of steps.

    Args:
        cell: ``prefix[, input] -> slot``.
        head: ``slots -> output``, or None.
        inputs: start, steps and, where the cell takes them, inputs.
        outputs: memory and, with a head, output.
    """
    cell = compose.add_prefix(cell, "cell/")
    body = _body(cell.graph, inputs[0], takes_inputs=len(inputs) == 3)
    nodes = [
        helper.make_node(
            "Loop", ["steps", "always", "start"], ["memory"], name="rollout", body=body
        )
    ]
    constants = [_constant("slot_axis", [1]), numpy_helper.from_array(np.array(True), "always")]
    constants += cell.graph.initializer
    if head is not None:
        head = compose.add_prefix(head, "head/")
        nodes += _new_slots(head.graph.input[0].name)
        nodes += head.graph.node
        nodes.append(helper.make_node("Identity", [head.graph.output[0].name], ["output"]))
        constants += [_constant("to_end", [np.iinfo(np.int64).max]), *head.graph.initializer]
    graph = helper.make_graph(
        nodes,
        "rollout",
        [_value(spec) for spec in inputs],
        [_value(spec) for spec in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=cell.opset_import, ir_version=cell.ir_version)


def _body(cell: onnx.GraphProto, start: TensorSpec, *, takes_inputs: bool) -> onnx.GraphProto:
    """One iteration: ``i, go_on, memory -> go_on, memory with one more slot``."""
    nodes = [
        helper.make_node("Identity", ["go_on"], ["go_on_out"]),
        helper.make_node("Identity", ["carried"], [cell.input[0].name]),
    ]
    if takes_inputs:
        nodes.append(helper.make_node("Gather", ["inputs", "i"], [cell.input[1].name], axis=1))
    nodes += cell.node
    nodes += [
        helper.make_node("Unsqueeze", [cell.output[0].name, "slot_axis"], ["new_slot"]),
        helper.make_node("Concat", ["carried", "new_slot"], ["carried_out"], axis=1),
    ]
    batch, _, *slot = start.shape
    carried = [
        _value(TensorSpec(name, start.dtype, (batch, length, *slot)))
        for name, length in (("carried", "slots"), ("carried_out", "slots_and_one"))
    ]
    counter = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    flags = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("go_on", "go_on_out")]
    return helper.make_graph(nodes, "step", [counter, flags[0], carried[0]], [flags[1], carried[1]])


def _new_slots(name: str) -> list[onnx.NodeProto]:
    """The slots after ``start``, as ``name``."""
    return [
        helper.make_node("Shape", ["start"], ["k0"], start=1, end=2),
        helper.make_node("Slice", ["memory", "k0", "to_end", "slot_axis"], [name]),
    ]


def _constant(name: str, values: list[int]) -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(spec.name, _TYPES[spec.dtype], list(spec.shape))
