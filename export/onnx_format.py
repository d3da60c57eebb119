"""Write a network as an ONNX file."""

import glob
import logging
import secrets
import time
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import helper
from torch import Tensor

from memmodel.cell import has_hooks, offered
from memmodel.export.describe import check_form
from memmodel.export.errors import ExportError, ParityError
from memmodel.export.interface import Interface, interface_of
from memmodel.export.metadata import ONNX_KEY, Form, Metadata, State
from memmodel.export.onnx_graphs import buffer_step, prefix_step, rollout
from memmodel.export.onnx_run import artifact_rollout
from memmodel.export.onnx_trace import FIRST_OPSET, LAST_OPSET
from memmodel.export.parity import compare
from memmodel.export.preserve import preserved
from memmodel.export.publish import check_target, replacing
from memmodel.export.report import ExportReport
from memmodel.network import MemoryNetwork

_LOG = logging.getLogger("memmodel.export")

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
        state: how a step takes the memory: "prefix" (any cell) or "buffer", written in place (a
            cell with a ``masked`` method); None: "buffer" where the cell allows it, and a line in
            the log that says why where it does not.
        opset: 18 to 24. The write is a TensorScatter from 24 on and a ScatterND before.
        start: example ``(B, k0, *slot)``, needed for a cell without ``spec()``. The self-check
            draws its slots from it, so a few different ones are worth having.
        inputs: example ``(B, steps, *input)``, needed where such a cell takes inputs.
        force: replace an existing file.

    Returns:
        What was written and how far it is from eager.

    Raises:
        ValueError: an argument breaks one of the rules above.
        FileExistsError: the file exists and ``force`` is False.
        ExportError: the network cannot be expressed in ONNX, or the result differs from eager,
            or a cell's ``masked`` from its ``forward`` (:class:`ParityError`).
    """
    began = time.perf_counter()
    path = check_target(path, ".onnx", force=force)
    check_form(form)
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise ValueError(f"opset must be between {FIRST_OPSET} and {LAST_OPSET}, got {opset}")
    with preserved(network):
        interface = interface_of(network, start, inputs)
        if form == "rollout":
            if state is not None:
                raise ValueError(f"state must be None in the rollout form, got {state!r}")
            model, metadata = rollout(network, interface, opset)
        else:
            model, metadata = _step(network, interface, opset, state)
        metadata, files = _publish(network, interface, model, metadata, path, force=force)
    return ExportReport(path, files, time.perf_counter() - began, metadata)


def _step(
    network: MemoryNetwork, interface: Interface, opset: int, state: State | None
) -> tuple[onnx.ModelProto, Metadata]:
    """The step that writes in place where the cell allows it, else the one that takes prefixes."""
    if state not in (None, "prefix", "buffer"):
        raise ValueError(f"state must be 'prefix' or 'buffer', got {state!r}")
    reason = _why_not_in_place(network)
    if state == "buffer" and reason is not None:
        raise ValueError(
            f"state='buffer' needs a cell that takes a mask: {reason}; use state='prefix'"
        )
    if state != "prefix" and reason is None:
        try:
            return buffer_step(network, interface, opset)
        except ParityError:
            raise
        except ExportError as error:
            if state == "buffer":
                raise
            reason = str(error)
    if state is None:
        _LOG.warning("the step takes the exact prefix (state='prefix'): %s", reason)
    return prefix_step(network, interface, opset)


def _why_not_in_place(network: MemoryNetwork) -> str | None:
    name = type(network.cell).__name__
    if offered(network.cell, "masked") is None:
        return f"{name} has no method masked() that agrees with its forward"
    if has_hooks(network.cell):
        return f"{name} has hooks, which masked() does not run"
    return None


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
                metadata, parity=compare(network, interface, artifact_rollout(temporary, metadata))
            )
            _write(model, metadata, temporary, weights)
    except BaseException:
        if weights is not None:
            weights.unlink(missing_ok=True)
        raise
    for old in path.parent.glob(f"{glob.escape(path.name)}.*.weights"):
        if old != weights:
            old.unlink()  # belonged to the file that was replaced, or to an export that was killed
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
