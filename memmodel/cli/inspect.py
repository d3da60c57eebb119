"""``memmodel inspect``: what an exported file says about itself."""

from pathlib import Path

import click

from memmodel.export.metadata import Metadata
from memmodel.export.reading import read_metadata


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the stored JSON document.")
def command(file: Path, as_json: bool) -> None:
    """Show what FILE holds: an .onnx, TorchScript or .pt2 file of memmodel export.

    Says what is wrong with a file that is damaged, foreign or of a newer version.
    """
    metadata = read_metadata(file)
    click.echo(metadata.to_json() if as_json else "\n".join(_lines(file, metadata)))


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
