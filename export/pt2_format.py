"""Write a network as a ``.pt2`` file: a torch.export program or an AOTInductor package."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from memmodel.export.describe import check_form, torch_metadata
from memmodel.export.interface import (
    EXAMPLE_BATCH,
    EXAMPLE_SLOTS,
    EXAMPLE_STEPS,
    Interface,
    interface_of,
)
from memmodel.export.metadata import EXTRA_FILE, Form, Metadata
from memmodel.export.parity import CASES, Case, compare
from memmodel.export.preserve import preserved
from memmodel.export.pt2_aot import compile_package, load_package, stamp
from memmodel.export.pt2_capture import BATCH, SLOTS, Dims, capture, load_program, make_storable
from memmodel.export.pt2_modules import DynamicRollout, FixedRollout, PrefixStep
from memmodel.export.publish import check_target, replacing
from memmodel.export.report import ExportReport
from memmodel.export.torch_run import artifact_rollout
from memmodel.network import MemoryNetwork


def to_pt2(
    network: MemoryNetwork,
    path: str | Path,
    *,
    form: Form = "rollout",
    steps: int | None = None,
    aot: bool = False,
    start: Tensor | None = None,
    inputs: Tensor | None = None,
    force: bool = False,
) -> ExportReport:
    """Write ``network`` as a ``.pt2`` file of aten ops.

    Batch and k0 are free, and so are the steps unless ``steps`` fixes them. A rollout allocates its
    memory once and writes it in place.

    Args:
        network: the network, on the device the file is to run on.
        path: where to write, ending with ``.pt2``.
        form: "rollout", one call makes all steps; or "step", ``prefix[, input] -> slot[, output]``.
        steps: fix the number of steps of a rollout, which unrolls it: the graph grows with it. For
            cells that the loop of free steps does not take.
        aot: compile to native code with AOTInductor, for this machine's kind and the network's
            device; needs a C++ compiler. A rollout then needs ``steps``.
        start: example ``(B, k0, *slot)``, needed for a cell without ``spec()``.
        inputs: example ``(B, steps, *input)``, needed where such a cell takes inputs.
        force: replace an existing file.

    Returns:
        What was written, how far it is from eager and, with ``aot``, how long compiling took.

    Raises:
        ValueError: an argument breaks one of the rules above.
        FileExistsError: the file exists and ``force`` is False.
        ExportError: the network cannot be captured or compiled, or the result differs from eager
            (:class:`ParityError`).
    """
    began = time.perf_counter()
    path = check_target(path, ".pt2", force=force)
    check_form(form)
    _check_steps(form, steps, aot=aot)
    compile_seconds = None
    with preserved(network):
        interface = interface_of(network, start, inputs)
        metadata = torch_metadata(
            network,
            interface,
            "aoti" if aot else "pt2",
            form,
            fixed={} if steps is None else {"steps": steps},
            device=interface.slots.device.type if aot else None,
        )
        program = _capture(network, interface, form, steps)
        with replacing(path, force=force) as temporary:
            if aot:
                compile_seconds = compile_package(program, temporary)
                stamp(temporary, metadata.to_json())
                run = load_package(temporary)
            else:
                make_storable(program)
                _save(program, temporary, metadata)
                run = load_program(temporary)
            parity = compare(network, interface, _rollout(run, metadata), _cases(steps))
            metadata = replace(metadata, parity=parity)
            if aot:
                stamp(temporary, metadata.to_json())
            else:
                _save(program, temporary, metadata)
    files = {path.name: path.stat().st_size}
    return ExportReport(path, files, time.perf_counter() - began, metadata, compile_seconds)


def _check_steps(form: Form, steps: int | None, *, aot: bool) -> None:
    if steps is not None and form == "step":
        raise ValueError(f"steps must be None in the step form, got {steps}")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be None or at least 1, got {steps}")
    if aot and form == "rollout" and steps is None:
        raise ValueError(
            "steps must be given for an AOTInductor rollout: its loop of free steps loses writes "
            "in place"
        )


def _capture(
    network: MemoryNetwork, interface: Interface, form: Form, steps: int | None
) -> ExportedProgram:
    count = EXAMPLE_STEPS if steps is None else steps
    start, inputs = interface.draw(EXAMPLE_BATCH, EXAMPLE_SLOTS, count)
    free: dict[int, Any] = {0: BATCH, 1: SLOTS}
    if form == "step":
        given = [] if inputs is None else [inputs[:, 0].contiguous()]
        shapes = [free, *({0: BATCH} for _ in given)]
        return capture(PrefixStep(network), [start, *given], shapes, strict=False)
    given = [] if inputs is None else [inputs]
    if steps is not None:
        shapes = [free, *({0: BATCH} for _ in given)]
        return capture(FixedRollout(network, steps), [start, *given], shapes, strict=False)
    loop_shapes: list[Dims] = [free, None, *({0: BATCH, 1: SLOTS} for _ in given)]
    args = [start, torch.tensor(EXAMPLE_STEPS), *given]
    return capture(DynamicRollout(network), args, loop_shapes, strict=True)


def _save(program: ExportedProgram, path: Path, metadata: Metadata) -> None:
    torch.export.save(program, path, extra_files={EXTRA_FILE: metadata.to_json()})


def _rollout(run: Callable[..., Any], metadata: Metadata) -> Callable[..., Any]:
    rollout = artifact_rollout(run, metadata)
    if metadata.form == "step" or "steps" in metadata.fixed:
        return rollout
    return lambda start, steps, inputs: rollout(start, torch.tensor(steps), inputs)


def _cases(steps: int | None) -> tuple[Case, ...]:
    return CASES if steps is None else tuple(replace(case, steps=steps) for case in CASES)
