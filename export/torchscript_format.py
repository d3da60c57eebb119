"""Write a network as a TorchScript file."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from memmodel.export import script_modules as scripts
from memmodel.export.describe import check_form, torch_metadata
from memmodel.export.errors import ExportError
from memmodel.export.interface import EXAMPLE_BATCH, EXAMPLE_SLOTS, Interface, interface_of
from memmodel.export.metadata import EXTRA_FILE, Form
from memmodel.export.parity import compare
from memmodel.export.preserve import preserved
from memmodel.export.publish import check_target, replacing
from memmodel.export.report import ExportReport
from memmodel.export.torch_run import artifact_rollout
from memmodel.network import MemoryNetwork


def to_torchscript(
    network: MemoryNetwork,
    path: str | Path,
    *,
    form: Form = "rollout",
    start: Tensor | None = None,
    inputs: Tensor | None = None,
    force: bool = False,
) -> ExportReport:
    """Write ``network`` as a TorchScript file, for ``torch.jit.load`` in Python and C++.

    PyTorch deprecates TorchScript; its successor is :func:`to_pt2`. Cell and head are compiled from
    their source where TorchScript can (control flow is kept) and traced where it cannot. Batch, k0
    and steps are free. A rollout allocates its memory once and writes it in place; the module does
    not record gradients.

    Args:
        network: the network, on the device the file's weights are to be on; whoever loads the file
            can choose another with ``map_location``.
        path: where to write, ending with ``.pt``.
        form: "rollout", one call makes all steps; or "step", ``prefix[, input] -> slot[, output]``.
        start: example ``(B, k0, *slot)``, needed for a cell without ``spec()``.
        inputs: example ``(B, steps, *input)``, needed where such a cell takes inputs.
        force: replace an existing file.

    Returns:
        What was written and how far it is from eager.

    Raises:
        ValueError: an argument breaks one of the rules above.
        FileExistsError: the file exists and ``force`` is False.
        ExportError: cell or head can be neither scripted nor traced, or the result differs from
            eager (:class:`ParityError`).
    """
    began = time.perf_counter()
    path = check_target(path, ".pt", force=force)
    check_form(form)
    with preserved(network):
        interface = interface_of(network, start, inputs)
        metadata = torch_metadata(network, interface, "torchscript", form)
        with _deprecated(), replacing(path, force=force) as temporary:
            module = torch.jit.script(_wrap(network, interface, form))
            _refuse_foreign_ops(module)
            _save(module, temporary, metadata.to_json())
            loaded = torch.jit.load(temporary, map_location=interface.slots.device)
            parity = compare(network, interface, artifact_rollout(loaded, metadata))
            metadata = replace(metadata, parity=parity)
            _save(module, temporary, metadata.to_json())
    files = {path.name: path.stat().st_size}
    return ExportReport(path, files, time.perf_counter() - began, metadata)


def _wrap(network: MemoryNetwork, interface: Interface, form: Form) -> nn.Module:
    prefix, inputs = interface.draw(EXAMPLE_BATCH, EXAMPLE_SLOTS, 1)
    given = (prefix,) if inputs is None else (prefix, inputs[:, 0])
    cell = _compile(network.cell, given, "cell")
    head = None if network.head is None else _compile(network.head, (prefix,), "head")
    if form == "step":
        if head is None:
            return (scripts.Step if inputs is None else scripts.StepWithInput)(cell).eval()
        make = scripts.StepWithHead if inputs is None else scripts.StepWithInputAndHead
        return make(cell, head).eval()
    rollout = scripts.Rollout(cell) if inputs is None else scripts.RolloutWithInputs(cell)
    if head is None:
        return rollout.eval()
    with_head = scripts.WithHead if inputs is None else scripts.WithInputsAndHead
    return with_head(rollout, head).eval()


def _compile(module: nn.Module, example: tuple[Tensor, ...], role: str) -> nn.Module:
    """Script ``module``, or trace it where TorchScript does not understand its source."""
    try:
        scripted: nn.Module = torch.jit.script(module)
        return scripted
    except Exception as refusal:  # torch.jit raises many types, plain RuntimeError among them
        try:
            # Values that tracing would fix, such as a prefix length, show in the self-check.
            traced: nn.Module = torch.jit.trace(module, example, check_trace=False)
            return traced
        except Exception as error:
            raise ExportError(
                f"TorchScript can neither script nor trace {role} {type(module).__name__}: "
                f"{refusal}; {error}"
            ) from error


def _refuse_foreign_ops(module: torch.jit.ScriptModule) -> None:
    """Refuse ops of Python libraries: torch.jit.load fails on them in another process."""
    kinds = _kinds(module.inlined_graph)
    foreign = sorted(kind for kind in kinds if kind.split("::")[0] not in ("aten", "prim"))
    if foreign:
        raise ExportError(f"TorchScript files may hold aten ops only, cell or head use {foreign}")


def _kinds(block: torch._C.Graph | torch._C.Block) -> set[str]:
    kinds = set()
    for node in block.nodes():
        kinds.add(node.kind())
        for inner in node.blocks():
            kinds |= _kinds(inner)
    return kinds


def _save(module: torch.jit.ScriptModule, path: Path, metadata: str) -> None:
    torch.jit.save(module, str(path), _extra_files={EXTRA_FILE: metadata})


@contextmanager
def _deprecated() -> Iterator[None]:
    """Whoever calls this module asked for TorchScript; the docs say that it is deprecated."""
    with warnings.catch_warnings():
        pattern = r"[\s`]*torch\.jit\."
        warnings.filterwarnings("ignore", pattern, DeprecationWarning)
        warnings.filterwarnings("ignore", pattern, FutureWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
        yield
