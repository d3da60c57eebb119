"""``memmodel export``: a saved run as a file that runs without memmodel."""

from pathlib import Path
from typing import Any

import click

from memmodel.cli.classes import class_option

_SUFFIXES = {".onnx": "ONNX", ".pt": "TorchScript", ".pt2": "torch.export"}


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--form",
    type=click.Choice(["rollout", "step"]),
    help="One call makes all steps, or one slot.  [default: rollout]",
)
@click.option(
    "--state",
    type=click.Choice(["buffer", "prefix"]),
    help="How an ONNX step takes the memory.  [default: buffer, if the cell can]",
)
@click.option("--opset", type=click.IntRange(18, 24), help="ONNX opset.  [default: 24]")
@click.option("--aot", is_flag=True, help="Compile a .pt2 to native code (AOTInductor).")
@click.option("--steps", type=click.IntRange(1), help="Fix the steps of a .pt2 rollout.")
@click.option("--to", "target", type=click.Choice(["triton"]), help="Write a server's layout.")
@click.option(
    "--capacity",
    type=click.IntRange(2),
    help="Slots of one sequence in a server's layout.  [default: 1024]",
)
@class_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write sizes, errors and versions to FILE as JSON.",
    metavar="FILE",
)
def command(
    run: Path,
    out: Path,
    form: str | None,
    state: str | None,
    opset: int | None,
    aot: bool,
    steps: int | None,
    target: str | None,
    capacity: int | None,
    classes: tuple[type, ...],
    force: bool,
    report: Path | None,
) -> None:
    """Write the network saved in RUN as OUT.

    OUT's suffix chooses the format: .onnx, .pt (TorchScript) or .pt2 (torch.export). The file is
    run beside the network before it takes its place.

    \b
    memmodel export run model.onnx --form step
    memmodel export run single.onnx --form step --state prefix
    memmodel export run model.pt2 --aot --steps 24
    memmodel export run repository --to triton
    """
    if target == "triton":
        _refuse(form=form if form == "rollout" else None, state=state)
        _refuse(aot=aot, steps=steps, report=report)
        given = _given(opset=opset, capacity=capacity)
        _write_triton(run, out, classes, force=force, **given)
        return
    _refuse(capacity=capacity)
    options: dict[str, Any] = {"form": form or "rollout", "force": force}
    if out.suffix == ".onnx":
        _refuse(aot=aot, steps=steps)
        if state and form != "step":
            raise click.UsageError("--state is for steps: it needs --form step")
        options |= _given(opset=opset, state=state)
    elif out.suffix == ".pt":
        _refuse(state=state, opset=opset, aot=aot, steps=steps)
    elif out.suffix == ".pt2":
        _refuse(state=state, opset=opset)
        options |= {"aot": aot, "steps": steps}
    else:
        accepted = ", ".join(f"{suffix} ({name})" for suffix, name in _SUFFIXES.items())
        raise click.UsageError(f"OUT must end with one of {accepted}; got {out.name!r}")
    if report is not None and (report.resolve() == out.resolve() or not report.parent.is_dir()):
        raise click.UsageError(f"--report needs a file of its own in a directory, got {report}")
    _export(run, out, classes, options, report)


def _export(
    run: Path,
    out: Path,
    classes: tuple[type, ...],
    options: dict[str, Any],
    report: Path | None,
) -> None:
    from memmodel import export
    from memmodel.network import MemoryNetwork

    write = {".onnx": "to_onnx", ".pt": "to_torchscript", ".pt2": "to_pt2"}[out.suffix]
    result = getattr(export, write)(MemoryNetwork.load(run, classes=classes), out, **options)
    click.echo(str(result))
    if report is not None:
        report.write_text(result.to_json() + "\n", encoding="utf-8")
        click.echo(f"report: {report}")


def _write_triton(run: Path, out: Path, classes: tuple[type, ...], **options: Any) -> None:
    from memmodel.network import MemoryNetwork
    from memmodel.serve import triton

    network = MemoryNetwork.load(run, classes=classes)
    click.echo(f"{triton.write_repository(network, out, **options)}")


def _given(**options: Any) -> dict[str, Any]:
    """Those options that the user gave; the others keep the library's defaults."""
    return {name: value for name, value in options.items() if value is not None}


def _refuse(**options: Any) -> None:
    """Refuse options that the chosen format has no use for, rather than ignore them."""
    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise click.UsageError(f"{', '.join(given)} does not apply to this format")
