"""A model repository for NVIDIA Triton: the step form, with the memory kept by the server.

Triton's sequence batcher keeps the memory of each sequence and gives it to the graph as input and
output in one buffer, which the exporter proves to be safe. Every request of a sequence writes one
slot: the caller's own (``use_given`` true), which is how a sequence gets its start, or the one that
the network makes.

    inputs   ``given (1, *slot)``, ``use_given (1, 1)`` bool, ``input (1, *input)``
    outputs  ``slot (1, *slot)``, ``output (1, ...)``
"""

import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from memmodel.export.metadata import Metadata, TensorSpec

if TYPE_CHECKING:
    import onnx

    from memmodel.network import MemoryNetwork

_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "float64": "TYPE_FP64"}
# TensorScatter and Attention of opset 24 are younger than the ONNX Runtime of many Triton releases.
DEFAULT_OPSET = 20


def write_repository(
    network: "MemoryNetwork",
    directory: str | Path,
    *,
    name: str = "memmodel",
    capacity: int = 1024,
    opset: int = DEFAULT_OPSET,
    force: bool = False,
) -> Path:
    """Write ``directory/name/config.pbtxt`` and ``directory/name/1/model.onnx``.

    Args:
        network: a network whose cell has a ``masked`` method.
        directory: the model repository, made if needed.
        name: the model's name.
        capacity: slots of one sequence, its start included; Triton reads all of them in every step.
        opset: ONNX opset.
        force: replace a model of that name.

    Returns:
        The model's directory.

    Raises:
        ValueError: an argument breaks a rule, or the cell cannot take a mask.
        FileExistsError: there is such a model and ``force`` is False.
        memmodel.export.ExportError: the network cannot be exported.
    """
    import onnx

    from memmodel.export.alias import prove_in_place
    from memmodel.export.onnx_format import to_onnx
    from memmodel.export.reading import read_metadata

    if capacity < 2:
        raise ValueError(f"capacity must be at least 2, got {capacity}")
    target = Path(directory) / name
    if target.exists() and not force:
        raise FileExistsError(f"{target} exists: pass force=True (--force) to replace it")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{name}.{secrets.token_hex(4)}")
    old = temporary.with_name(f"{temporary.name}.old")
    try:
        version = temporary / "1"
        version.mkdir(parents=True)
        to_onnx(network, version / "model.onnx", form="step", state="buffer", opset=opset)
        metadata = read_metadata(version / "model.onnx")
        model = onnx.load(version / "model.onnx", load_external_data=False)
        _take_given_slots(model.graph)
        _count_slots(model.graph)
        prove_in_place(model.graph, "memory", "memory_out")
        onnx.save(model, version / "model.onnx")
        onnx.checker.check_model(str(version / "model.onnx"), full_check=True)
        config = _config(name, metadata, capacity)
        (temporary / "config.pbtxt").write_text(config, encoding="utf-8")
        if target.exists():
            target.rename(old)  # deleting it first would leave nothing where a kill comes between
        temporary.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        for path in (temporary, old):
            shutil.rmtree(path, ignore_errors=True)
    return target


def _take_given_slots(graph: "onnx.GraphProto") -> None:
    """``slot`` becomes ``use_given ? given : what the cell made``.

    A new sequence is empty, and its first slots are given; what the cell makes of an empty memory
    is not used.
    """
    from onnx import TensorProto, helper

    at = next(i for i, node in enumerate(graph.node) if "slot" in node.output)
    maker = graph.node[at]
    maker.output[list(maker.output).index("slot")] = "made_slot"
    graph.node.insert(
        at + 1, helper.make_node("Where", ["use_given", "given", "made_slot"], ["slot"])
    )
    given = graph.input.add()
    given.CopyFrom(next(value for value in graph.output if value.name == "slot"))
    given.name = "given"
    graph.input.append(helper.make_tensor_value_info("use_given", TensorProto.BOOL, ["batch", 1]))


def _count_slots(graph: "onnx.GraphProto") -> None:
    """``length`` becomes a state ``(batch, 1)`` that grows by one: Triton has no scalars."""
    from onnx import TensorProto, helper

    for node in graph.node:
        for i, value in enumerate(node.input):
            if value == "length":
                node.input[i] = "row_length"
    old = next(value for value in graph.input if value.name == "length")
    graph.input.remove(old)
    for values, name in ((graph.input, "length"), (graph.output, "length_out")):
        values.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", 1]))
    graph.initializer.append(helper.make_tensor("one_slot", TensorProto.INT64, [1], [1]))
    graph.node.insert(0, helper.make_node("Squeeze", ["length", "one_slot"], ["row_length"]))
    graph.node.append(helper.make_node("Add", ["length", "one_slot"], ["length_out"]))


def _config(name: str, metadata: Metadata, capacity: int) -> str:
    if metadata.dtype not in _TYPES:
        raise ValueError(f"Triton models take one of {sorted(_TYPES)}, got {metadata.dtype}")
    inputs = [_tensor("given", metadata.dtype, metadata.slot_shape)]
    inputs.append(_entry("use_given", "TYPE_BOOL", (1,)))
    if metadata.input_shape is not None:
        inputs.append(_tensor("input", metadata.dtype, metadata.input_shape))
    outputs = [_output(spec) for spec in metadata.outputs if spec.name != "memory_out"]
    states = [
        # Not in place: the new length must not be seen by what still has to read the old one.
        _state("length", "TYPE_INT64", (1,), in_place=False),
        _state("memory", _TYPES[metadata.dtype], (capacity, *metadata.slot_shape), in_place=True),
    ]
    return f"""\
name: "{name}"
backend: "onnxruntime"
# One sequence per call, so that its memory is used where it lies.
max_batch_size: 1
input [
{_join(inputs)}
]
output [
{_join(outputs)}
]
sequence_batching {{
  direct {{ }}
  state [
{_join(states)}
  ]
}}
"""


def _output(spec: TensorSpec) -> str:
    return _tensor(spec.name, spec.dtype, spec.shape[1:])


def _tensor(name: str, dtype: str, shape: tuple[int | str, ...]) -> str:
    return _entry(
        name, _TYPES[dtype], tuple(-1 if isinstance(s, str) else s for s in shape) or (1,)
    )


def _entry(name: str, kind: str, dims: tuple[int, ...]) -> str:
    return f'  {{ name: "{name}" data_type: {kind} dims: {list(dims)} }}'


def _state(name: str, kind: str, dims: tuple[int, ...], *, in_place: bool) -> str:
    # Triton pairs input and output states in the order of their names: both sides sort alike.
    return f"""\
    {{
      input_name: "{name}"
      output_name: "{name}_out"
      data_type: {kind}
      dims: {list(dims)}
      use_same_buffer_for_input_output: {str(in_place).lower()}
      initial_state {{ name: "empty" data_type: {kind} dims: {list(dims)} zero_data: true }}
    }}"""


def _join(entries: list[str]) -> str:
    return ",\n".join(entries)
