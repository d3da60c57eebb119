"""The ONNX graphs of a network, one function per form, each with its metadata."""

import onnx
import torch
from torch import Tensor

from memmodel.export.alias import prove_in_place
from memmodel.export.describe import describe
from memmodel.export.interface import EXAMPLE_BATCH, EXAMPLE_SLOTS, EXAMPLE_STEPS, Interface
from memmodel.export.masked_check import check_masked
from memmodel.export.metadata import Form, Metadata, State, TensorSpec
from memmodel.export.onnx_rollout import build_rollout
from memmodel.export.onnx_trace import trace
from memmodel.export.report import versions
from memmodel.export.steps import BufferStep, Head, PrefixStep
from memmodel.network import MemoryNetwork


def prefix_step(
    network: MemoryNetwork, interface: Interface, opset: int, *, with_head: bool = True
) -> tuple[onnx.ModelProto, Metadata]:
    """One slot from the exact prefix: ``prefix[, input] -> slot[, output]``."""
    prefix, inputs = interface.draw(EXAMPLE_BATCH, EXAMPLE_SLOTS, 1)
    head = interface.output_specs("batch") if with_head else ()
    outputs = (interface.slot_spec("slot", "batch"), *head)
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


def buffer_step(
    network: MemoryNetwork, interface: Interface, opset: int
) -> tuple[onnx.ModelProto, Metadata]:
    """One slot into the buffer: ``memory, length[, input] -> memory_out, slot[, output]``.

    Raises:
        ParityError: the cell's ``masked`` makes other slots than its ``forward``.
        AliasError: the graph cannot be written in place.
    """
    check_masked(network.cell, interface)
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


def rollout(
    network: MemoryNetwork, interface: Interface, opset: int
) -> tuple[onnx.ModelProto, Metadata]:
    """All slots: ``start, steps[, inputs] -> memory[, output]``."""
    cell, _ = prefix_step(network, interface, opset, with_head=False)
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
    return describe(
        network,
        interface,
        format="onnx",
        form=form,
        state=state,
        inputs=inputs,
        outputs=outputs,
        capacity=capacity,
        opset=opset,
        versions=versions("torch", "onnx", "onnxscript"),
    )
