"""``memmodel inspect``: what an exported file, or a saved run, says about itself."""

from pathlib import Path

import click

from memmodel.cli.classes import class_option
from memmodel.export.metadata import Metadata
from memmodel.export.reading import read_metadata


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@class_option
@click.option("--json", "as_json", is_flag=True, help="Print the stored JSON document.")
def command(file: Path, classes: tuple[type, ...], as_json: bool) -> None:
    """Show what FILE holds: a file of memmodel export, or the directory of a saved run.

    Says what is wrong with a file that is damaged, foreign or of a newer version.
    """
    if file.is_dir() and not as_json:
        click.echo("\n".join(_run_lines(file, classes)))
        return
    metadata = read_metadata(file)
    click.echo(metadata.to_json() if as_json else "\n".join(_lines(file, metadata)))


def _run_lines(directory: Path, classes: tuple[type, ...]) -> list[str]:
    from memmodel.cell import offered
    from memmodel.network import MemoryNetwork
    from memmodel.spec import spec_of

    network = MemoryNetwork.load(directory, classes=classes)
    spec = spec_of(network.cell)
    told = "no spec(): an export needs examples"
    if spec is not None:
        told = f"slot {_shape(spec.slot.shape)} {spec.slot.dtype}"
        told += f", inputs {_shape(spec.inputs.shape)}" if spec.inputs else ", no inputs"
    in_place = offered(network.cell, "masked") is not None
    count = sum(parameter.numel() for parameter in network.parameters())
    head = "none" if network.head is None else type(network.head).__name__
    return [
        f"run       {directory}",
        f"cell      {type(network.cell).__name__}, {told}",
        f"steps     {'in place' if in_place else 'from the exact prefix: no masked()'}",
        f"head      {head}",
        f"weights   {count:,} numbers",
    ]


def _lines(file: Path, metadata: Metadata) -> list[str]:
    state = f", state {metadata.state}" if metadata.state else ""
    opset = f", opset {metadata.opset}" if metadata.opset else ""
    lines = [
        f"file      {file} ({file.stat().st_size:,} bytes)",
        f"format    {metadata.format}, {metadata.form} form{state}{opset}",
        f"cell      {metadata.cell}, slot {_shape(metadata.slot_shape)} {metadata.dtype}",
    ]
    if metadata.device:
        lines.append(f"device    {metadata.device}")
    for label, specs in (("inputs", metadata.inputs), ("outputs", metadata.outputs)):
        for i, spec in enumerate(specs):
            lines.append(f"{label if i == 0 else '':10}{spec}")
    for name, size in metadata.fixed.items():
        lines.append(f"fixed     {name} = {size}")
    lines.append(f"capacity  {metadata.capacity}")
    if metadata.parity:
        parity = metadata.parity
        lines.append(
            f"parity    {parity.max_abs_error:.2g} from eager, {parity.max_rel_error:.2g} relative"
            f" (allowed {parity.tolerance:.0e})"
        )
    versions = ", ".join(f"{name} {version}" for name, version in metadata.versions.items())
    lines.append(f"versions  {versions}; format version {metadata.format_version}")
    return lines


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
