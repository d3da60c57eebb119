"""Graphs written by hand, so that serving is tested against arithmetic known from elsewhere.

The cell: ``slot = tanh(mean of the written slots + newest slot / 2 + input)``, the head doubles it.
"""

from pathlib import Path

import numpy as np
import onnx

from memmodel.export.metadata import ONNX_KEY, Metadata, TensorSpec

_PREFIX = """
<ir_version: 11, opset_import: ["" : 24]>
step (float[batch, slots, D] prefix INPUT) => (float[batch, D] slot, float[batch, D] output)
<int64[1] one = {1}, int64 last = {-1}, float half = {0.5}, float two = {2.0}>
{
  mean = ReduceMean <keepdims = 0> (prefix, one)
  newest = Gather <axis = 1> (prefix, last)
  part = Mul (newest, half)
  sum = Add (mean, part)
  ADD
  slot = Tanh (total)
  output = Mul (slot, two)
}
"""

_BUFFER = """
<ir_version: 11, opset_import: ["" : 24]>
step (float[batch, capacity, D] memory, int64[batch] length INPUT)
  => (float[batch, capacity, D] memory_out, float[batch, D] slot, float[batch, D] output)
<int64[1] one = {1}, int64[2] tail = {1, 2}, int64 zero = {0}, int64 step1 = {1},
 float half = {0.5}, float two = {2.0}, float nil = {0.0}>
{
  shape = Shape <start = 1, end = 2> (memory)
  capacity = Squeeze (shape)
  positions = Range (zero, capacity, step1)
  lengths = Unsqueeze (length, one)
  written = Less (positions, lengths)
  mask = Unsqueeze (written, last3)
  weights = Cast <to = 1> (mask)
  masked = Mul (memory, weights)
  sums = ReduceSum <keepdims = 0> (masked, one)
  count = Cast <to = 1> (lengths)
  mean = Div (sums, count)
  at = Sub (lengths, one)
  newest = GatherND <batch_dims = 1> (memory, at)
  part = Mul (newest, half)
  sum = Add (mean, part)
  ADD
  slot = Tanh (total)
  output = Mul (slot, two)
  update = Unsqueeze (slot, one)
  memory_out = TensorScatter <axis = 1> (memory, update, length)
}
""".replace("int64[2] tail = {1, 2}", "int64[1] last3 = {2}")


def save_step(
    path: Path, *, state: str = "buffer", takes_inputs: bool = True, width: int = 3
) -> Path:
    """Write a step graph of the cell above."""
    text = _BUFFER if state == "buffer" else _PREFIX
    text = text.replace("INPUT", f", float[batch, {width}] input" if takes_inputs else "")
    text = text.replace(
        "ADD", "total = Add (sum, input)" if takes_inputs else "total = Identity (sum)"
    )
    model = onnx.parser.parse_model(text.replace("D]", f"{width}]"))
    onnx.checker.check_model(model, full_check=True)
    onnx.helper.set_model_props(model, {ONNX_KEY: _metadata(state, takes_inputs, width).to_json()})
    onnx.save(model, path)
    return path


def expected(start: np.ndarray, steps: int, inputs: np.ndarray | None = None) -> np.ndarray:
    """The memory after a rollout, in float64."""
    memory = start.astype(np.float64)
    for i in range(steps):
        total = memory.mean(1) + memory[:, -1] / 2
        total = total if inputs is None else total + inputs[:, i]
        memory = np.concatenate([memory, np.tanh(total)[:, None]], axis=1)
    return memory


def _metadata(state: str, takes_inputs: bool, width: int) -> Metadata:
    def spec(name: str, *shape: int | str, dtype: str = "float32") -> TensorSpec:
        return TensorSpec(name, dtype, shape)

    inputs = {
        "prefix": [spec("prefix", "batch", "slots", width)],
        "buffer": [
            spec("memory", "batch", "capacity", width),
            spec("length", "batch", dtype="int64"),
        ],
    }[state]
    outputs = [spec("slot", "batch", width), spec("output", "batch", width)]
    if state == "buffer":
        outputs.insert(0, spec("memory_out", "batch", "capacity", width))
    if takes_inputs:
        inputs.append(spec("input", "batch", width))
    return Metadata(
        format="onnx",
        form="step",
        state=state,
        dtype="float32",
        slot_shape=(width,),
        input_shape=(width,) if takes_inputs else None,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        capacity="",
        cell="tests.hand_made",
    )
