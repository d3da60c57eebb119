"""Write a network as an ONNX file."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor

from memmodel.cells import AttentionCell
from memmodel.export.alias import prove_in_place
from memmodel.export.errors import ExportError
from memmodel.export.interface import (
    EXAMPLE_BATCH,
    EXAMPLE_SLOTS,
    EXAMPLE_STEPS,
    Interface,
    interface_of,
)
from memmodel.export.metadata import ONNX_KEY, Form, Metadata, State, TensorSpec
from memmodel.export.onnx_rollout import build_rollout
from memmodel.export.onnx_trace import FIRST_OPSET, LAST_OPSET, trace
from memmodel.export.parity import Call, Outputs, compare, rollout_by_steps
from memmodel.export.preserve import preserved
from memmodel.export.publish import check_target, replacing
from memmodel.export.report import ExportReport, versions
from memmodel.export.steps import BufferStep, Head, PrefixStep
from memmodel.network import MemoryNetwork

# protobuf cannot hold more than 2 GB; above this, weights go into a file of their own.
EXTERNAL_BYTES = 1_800_000_000
DEFAULT_OPSET = 24


def to_onnx(
    network: MemoryNetwork,
    path: str | Path,
    *,
    form: Form = "rollout",
    state: State | None = None,
    opset: int = DEFAULT_OPSET,
    start: Tensor | None = None,
    inputs: Tensor | None = None,
    force: bool = False,
) -> ExportReport:
    """Write ``network`` as an ONNX file that standard operators alone make up.

    Batch, k0 and steps are free; see :mod:`memmodel.export.metadata` for the graphs' inputs and
    outputs. The file is run beside eager at other sizes than the example's before it takes its
    place. The network is as before afterwards.

    Args:
        network: the network, on any device.
        path: where to write, ending with ``.onnx``.
        form: "rollout", one call makes all steps; or "step", one call makes one slot.
        state: how a step takes the memory: "prefix" (any cell) or "buffer", written in place (an
            :class:`memmodel.AttentionCell`); None: "buffer" where the cell allows it.
        opset: 18 to 24. The write is a TensorScatter from 24 on and a ScatterND before.
        start: example ``(B, k0, *slot)``, needed for a cell of the user's own class. The self-check
            draws its slots from it, so a few different ones are worth having.
        inputs: example ``(B, steps, *input)``, needed where such a cell takes inputs.
        force: replace an existing file.

    Returns:
        What was written and how far it is from eager.

    Raises:
        ValueError: an argument breaks one of the rules above.
        FileExistsError: the file exists and ``force`` is False.
        ExportError: the network cannot be expressed in ONNX, or the result differs from eager
            (:class:`ParityError`).
    """
    began = time.perf_counter()
    path = check_target(path, ".onnx", force=force)
    if form not in ("rollout", "step"):
        raise ValueError(f"form must be 'rollout' or 'step', got {form!r}")
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise ValueError(f"opset must be between {FIRST_OPSET} and {LAST_OPSET}, got {opset}")
    with preserved(network):
        interface = interface_of(network, start, inputs)
        if form == "rollout":
            if state is not None:
                raise ValueError(f"state must be None in the rollout form, got {state!r}")
            model, metadata = _rollout(network, interface, opset)
        elif _step_state(network, state) == "buffer":
            model, metadata = _buffer_step(network, interface, opset)
        else:
            model, metadata = _prefix_step(network, interface, opset)
        metadata, files = _publish(network, interface, model, metadata, path, force=force)
    return ExportReport(path, files, time.perf_counter() - began, metadata)


def _step_state(network: MemoryNetwork, state: State | None) -> State:
    maskable = type(network.cell) is AttentionCell
    if state is None:
        return "buffer" if maskable else "prefix"
    if state not in ("prefix", "buffer"):
        raise ValueError(f"state must be 'prefix' or 'buffer', got {state!r}")
    if state == "buffer" and not maskable:
        raise ValueError(
            f"state='buffer' needs a cell that takes a mask, an AttentionCell; "
            f"{type(network.cell).__name__} needs the exact prefix: use state='prefix'"
        )
    return state


def _prefix_step(
    network: MemoryNetwork, interface: Interface, opset: int, *, with_head: bool = True
) -> tuple[onnx.ModelProto, Metadata]:
    prefix, inputs = interface.draw(EXAMPLE_BATCH, EXAMPLE_SLOTS, 1)
    outputs = (interface.slot_spec("slot", "batch"),)
    if with_head:
        outputs += interface.output_specs("batch")
    model = trace(
        PrefixStep(network, with_head=with_head),
        (prefix,) if inputs is None else (prefix, inputs[:, 0]),
        inputs=_free([("prefix", {0: "batch", 1: "slots"})], inputs),
        outputs=[spec.name for spec in outputs],
        opset=opset,
    )
    specs = (
        interface.slot_spec("prefix", "batch", "slots"),
        *interface.input_specs("input", "batch"),
    )
    rule = "the caller passes the written slots, of any number from 1 on, and stores the new one"
    return model, _metadata(network, interface, "step", "prefix", specs, outputs, rule, opset)


def _buffer_step(
    network: MemoryNetwork, interface: Interface, opset: int
) -> tuple[onnx.ModelProto, Metadata]:
    memory, inputs = interface.draw(EXAMPLE_BATCH, EXAMPLE_SLOTS, 1)
    length = torch.full((EXAMPLE_BATCH,), EXAMPLE_SLOTS - 2, device=memory.device)
    outputs = (
        interface.slot_spec("memory_out", "batch", "capacity"),
        interface.slot_spec("slot", "batch"),
        *interface.output_specs("batch"),
    )
    model = trace(
        BufferStep(network),
        (memory, length) if inputs is None else (memory, length, inputs[:, 0]),
        inputs=_free([("memory", {0: "batch", 1: "capacity"}), ("length", {0: "batch"})], inputs),
        outputs=[spec.name for spec in outputs],
        opset=opset,
    )
    prove_in_place(model.graph, "memory", "memory_out")
    specs = (
        interface.slot_spec("memory", "batch", "capacity"),
        TensorSpec("length", "int64", ("batch",)),
        *interface.input_specs("input", "batch"),
    )
    rule = (
        "1 <= length < capacity in every row; unwritten slots must be finite; "
        "memory_out may share the storage of memory"
    )
    return model, _metadata(network, interface, "step", "buffer", specs, outputs, rule, opset)


def _rollout(
    network: MemoryNetwork, interface: Interface, opset: int
) -> tuple[onnx.ModelProto, Metadata]:
    cell, _ = _prefix_step(network, interface, opset, with_head=False)
    head = None
    if network.head is not None:
        slots, _ = interface.draw(EXAMPLE_BATCH, EXAMPLE_STEPS, 0)
        free = {0: "batch", 1: "steps"}
        head = trace(
            Head(network.head), (slots,), inputs=[("slots", free)], outputs=["output"], opset=opset
        )
    specs = (
        interface.slot_spec("start", "batch", "k0"),
        TensorSpec("steps", "int64", ()),
        *interface.input_specs("inputs", "batch", "steps"),
    )
    outputs = (
        interface.slot_spec("memory", "batch", "slots"),
        *interface.output_specs("batch", "steps"),
    )
    rule = "k0 >= 1 and steps >= 0, both free; the memory grows by one slot per step"
    metadata = _metadata(network, interface, "rollout", None, specs, outputs, rule, opset)
    return build_rollout(cell, head, specs, outputs), metadata


def _free(
    state: list[tuple[str, dict[int, str]]], inputs: Tensor | None
) -> list[tuple[str, dict[int, str]]]:
    return state if inputs is None else [*state, ("input", {0: "batch"})]


def _metadata(
    network: MemoryNetwork,
    interface: Interface,
    form: Form,
    state: State | None,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    capacity: str,
    opset: int,
) -> Metadata:
    return Metadata(
        format="onnx",
        form=form,
        state=state,
        dtype=interface.dtype,
        slot_shape=interface.slot_shape,
        input_shape=interface.input_shape,
        inputs=inputs,
        outputs=outputs,
        capacity=capacity,
        cell=type(network.cell).__name__,
        opset=opset,
        versions=versions("torch", "onnx", "onnxscript"),
    )


def _publish(
    network: MemoryNetwork,
    interface: Interface,
    model: onnx.ModelProto,
    metadata: Metadata,
    path: Path,
    *,
    force: bool,
) -> tuple[Metadata, dict[str, int]]:
    """Write, check against eager, write the result of the check into the file, put it in place."""
    weights = _weights_path(model, path)
    try:
        with replacing(path, force=force) as temporary:
            _write(model, metadata, temporary, weights)
            onnx.checker.check_model(str(temporary), full_check=True)
            metadata = replace(
                metadata, parity=compare(network, interface, _runner(temporary, metadata))
            )
            _write(model, metadata, temporary, weights)
    except BaseException:
        if weights is not None:
            weights.unlink(missing_ok=True)
        raise
    written = [path] if weights is None else [path, weights]
    return metadata, {file.name: file.stat().st_size for file in written}


def _weights_path(model: onnx.ModelProto, path: Path) -> Path | None:
    """A new name beside ``path``, so that an older model of this name keeps its own weights."""
    if model.ByteSize() < EXTERNAL_BYTES:
        return None
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.weights")


def _write(model: onnx.ModelProto, metadata: Metadata, path: Path, weights: Path | None) -> None:
    helper.set_model_props(model, {ONNX_KEY: metadata.to_json()})
    model.producer_name = "memmodel"
    model.producer_version = metadata.versions["memmodel"]
    if weights is None:
        onnx.save(model, path)
        return
    weights.unlink(missing_ok=True)  # onnx appends to it
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # saving turns the tensors it is given into references
    onnx.save(copy, path, save_as_external_data=True, location=weights.name)


def _runner(path: Path, metadata: Metadata) -> Call:
    """The rollout that the file at ``path`` makes under ONNX Runtime."""
    call = _onnxruntime(path, metadata)
    if metadata.form == "step":
        assert metadata.state is not None
        return rollout_by_steps(call, metadata.state, per_row=True)

    def rollout(start: Tensor, steps: int, inputs: Tensor | None) -> Outputs:
        given = {} if inputs is None else {"inputs": inputs}
        return call({"start": start, "steps": torch.tensor(steps), **given})

    return rollout


def _onnxruntime(path: Path, metadata: Metadata) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own exception types share no public base class
        raise ExportError(f"ONNX Runtime refuses the graph: {error}") from error
    names = [spec.name for spec in metadata.outputs]

    def call(tensors: Mapping[str, Tensor]) -> Outputs:
        feeds = {name: np.ascontiguousarray(t.cpu().numpy()) for name, t in tensors.items()}
        results = session.run(names, feeds)
        return {name: torch.from_numpy(value) for name, value in zip(names, results, strict=True)}

    return call
