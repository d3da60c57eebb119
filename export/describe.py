"""Metadata of a network's artifacts; the PyTorch formats share inputs and outputs."""

from typing import Any

from memmodel.export.interface import Interface
from memmodel.export.metadata import Form, Format, Metadata, TensorSpec
from memmodel.export.report import versions
from memmodel.network import MemoryNetwork


def check_form(form: str) -> None:
    """Refuse an unknown form.

    Raises:
        ValueError: ``form`` is neither "rollout" nor "step".
    """
    if form not in ("rollout", "step"):
        raise ValueError(f"form must be 'rollout' or 'step', got {form!r}")


def torch_metadata(
    network: MemoryNetwork, interface: Interface, format: Format, form: Form, **more: Any
) -> Metadata:
    """Metadata of a TorchScript or ``.pt2`` artifact.

    Args:
        network: the network.
        interface: its shapes.
        format: the format.
        form: "rollout" or "step"; a step takes the exact prefix, which torch can view for free.
        more: further fields, such as ``fixed``.
    """
    fixed = more.get("fixed", {})
    if form == "rollout":
        steps = () if "steps" in fixed else (TensorSpec("steps", "int64", ()),)
        inputs = (
            interface.slot_spec("start", "batch", "k0"),
            *steps,
            *interface.input_specs("inputs", "batch", "steps"),
        )
        outputs = (
            interface.slot_spec("memory", "batch", "slots"),
            *interface.output_specs("batch", "steps"),
        )
        capacity = "k0 >= 1, steps >= 0; k0 + steps slots allocated once, written in place"
    else:
        inputs = (
            interface.slot_spec("prefix", "batch", "slots"),
            *interface.input_specs("input", "batch"),
        )
        outputs = (interface.slot_spec("slot", "batch"), *interface.output_specs("batch"))
        capacity = "the caller passes the written slots, 1 or more, and stores the new one"
    return describe(
        network,
        interface,
        format=format,
        form=form,
        state="prefix" if form == "step" else None,
        inputs=inputs,
        outputs=outputs,
        capacity=capacity,
        versions=versions("torch"),
        **more,
    )


def describe(network: MemoryNetwork, interface: Interface, **more: Any) -> Metadata:
    """Metadata whose fields about the network are filled in; ``more`` are the others."""
    return Metadata(
        dtype=interface.dtype,
        slot_shape=interface.slot_shape,
        input_shape=interface.input_shape,
        cell=type(network.cell).__name__,
        **more,
    )
