"""``memmodel train``: a forecaster for the user's own series."""

from pathlib import Path
from typing import Any

import click

from memmodel.cli.classes import cell_config_option, class_option, class_path, own_cell_class


@click.command("train")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Time series: .csv, .parquet, .npy or .npz, one series per column.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the run is saved.",
)
@click.option(
    "--window", default=64, show_default=True, help="Observed points a forecast starts from."
)
@click.option("--horizon", default=16, show_default=True, help="Points to forecast.")
@click.option(
    "--period",
    "periods",
    type=int,
    multiple=True,
    metavar="N",
    help="Seasonal period in points, at most the window; repeat for several.",
)
@click.option(
    "--columns", metavar="A,B,...", help="Columns to use.  [default: every column of numbers]"
)
@click.option(
    "--missing",
    type=click.Choice(["error", "interpolate"]),
    default="error",
    show_default=True,
    help="What to do about missing values.",
)
@click.option(
    "--cell",
    type=click.Choice(["attention", "rnn", "gru", "lstm"]),
    default="attention",
    show_default=True,
    help="What makes the next slot.",
)
@class_option
@cell_config_option
@click.option("--width", default=32, show_default=True, help="Numbers per slot.")
@click.option("--heads", default=4, show_default=True, help="Attention heads; must divide --width.")
@click.option("--epochs", default=30, show_default=True, help="Passes over the training windows.")
@click.option("--batch-size", default=32, show_default=True, help="Windows per optimiser step.")
@click.option("--stride", default=1, show_default=True, help="Points between training windows.")
@click.option("--lr", default=6e-3, show_default=True, help="Peak learning rate.")
@click.option(
    "--holdout", default=0.2, show_default=True, help="Last fraction of each series, to test on."
)
@click.option(
    "--validation",
    default=0.1,
    show_default=True,
    help="Fraction before it, to pick the best epoch.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, ...")
@click.option(
    "--threads",
    type=int,
    metavar="N",
    help="CPU threads; 1 is faster where other work keeps cores busy.  [default: PyTorch's]",
)
@click.option("--seed", default=0, show_default=True, help="Of the weights and the order.")
@click.option("--compile", is_flag=True, help="Train with torch.compile.")
@click.option("--resume", is_flag=True, help="Finish the run that was interrupted in --out.")
@click.option(
    "--save-every",
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Training time between checkpoints.",
)
def command(
    data: Path,
    out: Path,
    columns: str | None,
    missing: str,
    cell: str,
    classes: tuple[type, ...],
    device: str,
    threads: int | None,
    resume: bool,
    save_every: float,
    **options: Any,
) -> None:
    """Train a forecaster on time series of your own.

    Every column is a series. One network learns from all of them, each scaled
    by its own training part, and is measured on the tail of each that it never
    saw, beside forecasts that need no training.

    A killed run is finished by the same command with --resume, with the result
    it would have had.
    """
    from memmodel.cli.parsing import split_names
    from memmodel.cli.progress import progress_bar
    from memmodel.cli.tables import error_table
    from memmodel.train import TrainOptions, load_series, train
    from memmodel.train.checkpoint import CHECKPOINT
    from memmodel.train.run import RECORD

    series = load_series(data, columns=split_names(columns), missing=missing)
    own = own_cell_class(classes)
    chosen = TrainOptions(cell=class_path(own) if own else cell, **options)
    for one in series:
        if one.filled:
            click.echo(f"{one.name}: interpolated {one.filled} of {len(one.values)} values")
    if resume and not any((out / name).exists() for name in (CHECKPOINT, RECORD)):
        click.echo(f"no checkpoint in {out} yet: starting from the beginning")
    run = train(
        series,
        chosen,
        out,
        cell_class=own,
        device=device,
        resume=resume,
        threads=threads,
        save_every=save_every,
        progress=progress_bar,
    )
    click.echo(error_table(run.errors))
    click.echo(f"saved in {out}")
