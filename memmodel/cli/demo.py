"""``memmodel demo``: the whole way on real data, from a series to a served forecaster."""

from pathlib import Path

import click


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("memmodel-demo"),
    show_default=True,
    metavar="DIR",
    help="Where everything is written; an earlier demo there is replaced.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Another series: .csv, .parquet, .npy or .npz.  [default: weekly CO2]",
)
@click.option("--columns", metavar="A,B,...", help="Columns of --data to use.  [default: all]")
@click.option(
    "--window", default=104, show_default=True, help="Observed points a forecast starts from."
)
@click.option("--horizon", default=52, show_default=True, help="Points to forecast.")
@click.option("--period", default=52, show_default=True, help="Seasonal period in points.")
def command(
    out: Path, data: Path | None, columns: str | None, window: int, horizon: int, period: int
) -> None:
    """Train, export, serve and plot a forecaster on real data.

    Trains on weekly atmospheric CO2, measures the forecaster on years it never
    saw beside forecasts that need no training, exports it to ONNX and
    TorchScript, forecasts through ONNX Runtime, and measures what a training
    step costs with torch.cat and with memmodel. About two minutes on two cores.

    Exits with 1 if a result that it promises is not reached.
    """
    from memmodel.cli.parsing import split_names
    from memmodel.cli.progress import progress_bar
    from memmodel.demo.data import COLUMNS, SOURCE, TITLE, co2_file
    from memmodel.demo.flow import Demo
    from memmodel.train import TrainOptions, load_series

    chosen = split_names(columns) if data else COLUMNS
    series = load_series(data or co2_file(), columns=chosen, missing="interpolate")
    options = TrainOptions(
        window=window, horizon=horizon, periods=(period,), epochs=20, batch_size=64
    )
    if data:
        demo = Demo(out, title=data.name, source=str(data), unit="point", echo=click.echo)
    else:
        demo = Demo(out, title=TITLE, source=SOURCE, unit="week", echo=click.echo)
    unreached = demo.run(series, options, progress=progress_bar)
    if unreached:
        raise click.ClickException(f"not reached: {'; '.join(unreached)}")
