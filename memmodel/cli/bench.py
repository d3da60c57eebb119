"""``memmodel bench``: what a rollout of the user's own costs on this machine."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from memmodel.bench.strategy import Measurement
from memmodel.bench.sweep import CAT, FACTORIES, MEMMODEL, Points, Rollout, sweep, to_json
from memmodel.cli.classes import cell_config_option, class_option, class_path, own_cell_class


class Sizes(click.ParamType):
    """Whole numbers separated by commas."""

    name = "N,N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Split and convert."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 64,128", param, ctx)


@click.command("bench")
@click.option(
    "--cell",
    default="attention",
    show_default=True,
    metavar="CELL",
    help="attention, rnn, gru, lstm, or PACKAGE.MODULE:FUNCTION, a function without arguments "
    "that makes the cell; found from the current directory too.",
)
@class_option
@cell_config_option
@click.option(
    "--slot",
    type=Sizes(),
    default="64",
    show_default=True,
    help="Shape of a slot; one width for the built-in cells.",
)
@click.option("--batch", default=16, show_default=True, help="Rows.")
@click.option(
    "--steps",
    type=Sizes(),
    default="64,128,256,512",
    show_default=True,
    help="Numbers of steps to measure at.",
)
@click.option(
    "--start", "start_slots", default=1, show_default=True, help="Slots present before the rollout."
)
@click.option(
    "--inputs", "input_width", type=int, metavar="WIDTH", help="Width of per-step inputs, if any."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, ...")
@click.option(
    "--compile", is_flag=True, help="Compile: the cell for cat, the network for memmodel."
)
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice(list(FACTORIES)),
    multiple=True,
    help="Measure only this one; may be repeated.  [default: all]",
)
@click.option(
    "--rounds", default=5, show_default=True, help="Timed repetitions; the fastest counts."
)
@click.option(
    "--timeout", default=600.0, show_default=True, metavar="SECONDS", help="For one repetition."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    show_default=True,
    metavar="DIR",
    help="Where bench.png and bench.json are written.",
)
def command(
    steps: tuple[int, ...],
    strategies: tuple[str, ...],
    device: str,
    rounds: int,
    timeout: float,
    out: Path,
    classes: tuple[type, ...],
    cell: str,
    **shape: Any,
) -> None:
    """Measure time and peak memory of forward and backward, against steps.

    Compares memmodel with growing the memory by torch.cat, each strategy in a
    process of its own, taking turns; the fastest round counts. The loss is on
    the last slot. Results and gradients are compared before anything is timed.

    Peak memory is above the warmed-up process: resident size on the CPU
    (Linux), allocated memory on CUDA.
    """
    from memmodel.bench import describe_machine
    from memmodel.bench.plot import plot_sweep
    from memmodel.train.run import pick_device

    own = own_cell_class(classes)
    cell = class_path(own) if own else cell
    rollout = Rollout(cell=cell, device=str(pick_device(device)), **shape)
    points = _measure(
        rollout, steps, strategies=strategies or tuple(FACTORIES), rounds=rounds, timeout=timeout
    )
    click.echo(table(points))
    machine = describe_machine(rollout.device)
    out.mkdir(parents=True, exist_ok=True)
    document = json.dumps(to_json(rollout, points, machine), indent=1)
    (out / "bench.json").write_text(document + "\n", encoding="utf-8")
    plot_sweep(out / "bench.png", points, title=_title(rollout), note=_note(machine))
    click.echo(f"\nwritten: {out / 'bench.png'} and {out / 'bench.json'}")
    _fail_if_memmodel_failed(points)


def _measure(rollout: Rollout, steps: Sequence[int], **options: Any) -> Points:
    """Measure with a progress bar that says what is being done."""
    from memmodel.cli.progress import progress_bar

    with progress_bar(total=len(steps), unit="size", desc="measuring") as bar:

        def report(count: int, line: str) -> None:
            bar.set_postfix_str(f"{count} steps, {line}" if count else line, refresh=False)
            bar.update(sum(done < count for done in steps) - bar.n)

        points = sweep(rollout, steps, report=report, **options)
        bar.set_postfix_str("", refresh=False)
        bar.update(len(steps) - bar.n)
    return points


def table(points: Points) -> str:
    """Time and peak memory, one line per number of steps; failures below."""
    names = list(next(iter(points.values())))
    both = {CAT, MEMMODEL} <= set(names)
    heads = [f"{name} {unit}" for name in names for unit in ("ms", "peak MB")]
    heads += ["faster", "less memory"] if both else []
    lines = ["steps  " + "  ".join(heads)]
    notes = []
    for steps, rows in points.items():
        cells = []
        for name in names:
            row = rows[name]
            cells += [_figure(row.best_seconds, 1e3, 2), _figure(row.peak_bytes, 1e-6, 1)]
            if row.error is not None:
                notes.append(f"{name} at {steps} steps: {row.error}")
        if both:
            old, new = rows[CAT], rows[MEMMODEL]
            cells += [
                _times(old.best_seconds, new.best_seconds),
                _times(old.peak_bytes, new.peak_bytes),
            ]
        aligned = [cell.rjust(len(head)) for cell, head in zip(cells, heads, strict=True)]
        lines.append(f"{steps:5d}  " + "  ".join(aligned))
    return "\n".join(lines + notes)


def _figure(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{value * factor:.{digits}f}"


def _times(old: float | None, new: float | None) -> str:
    return f"{old / new:.1f}x" if old and new else "–"


def _title(rollout: Rollout) -> str:
    slot = "×".join(map(str, rollout.slot))
    compiled = ", compiled" if rollout.compile else ""
    return f"{rollout.cell} cell, batch {rollout.batch}, slot {slot}{compiled}, {rollout.device}"


def _note(machine: Mapping[str, str]) -> str:
    where = machine.get("gpu") or f"{machine['processor']}, {machine['cores']} cores"
    return f"{where}, torch {machine['torch']}"


def _fail_if_memmodel_failed(points: Points) -> None:
    for steps, rows in points.items():
        row: Measurement | None = rows.get(MEMMODEL)
        if row is not None and row.best_seconds is None:
            raise RuntimeError(f"memmodel failed at {steps} steps: {row.error}")
