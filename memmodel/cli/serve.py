"""``memmodel serve``: batch inference over files, or an HTTP and gRPC service."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from memmodel.cli.classes import class_option


@click.group("serve")
def command() -> None:
    """Run a model over files or as an HTTP service.

    MODEL is a file that `memmodel export` wrote, or a directory that `memmodel train` saved.
    """


@command.command("batch")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("source", metavar="INPUT", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(min=0), required=True, help="Slots to write per row.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Rows per call of the model.  [default: what fits the free memory]",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="This process, or a Ray cluster (needs the extra 'ray').",
)
@class_option
@click.option("--strict", is_flag=True, help="Stop at the first bad row instead of listing it.")
@click.option("--force", is_flag=True, help="Replace an output that exists.")
@click.option("--restart", is_flag=True, help="Forget stored work of an earlier command.")
def batch(
    model: Path,
    source: Path,
    output: Path,
    steps: int,
    batch_size: int | None,
    device: str,
    engine: str,
    classes: tuple[type, ...],
    strict: bool,
    force: bool,
    restart: bool,
) -> None:
    """Roll out every row of INPUT and write the results to OUTPUT.

    INPUT is a .npy file (start), an .npz, .safetensors or .parquet file with start and inputs,
    or a directory of such files; OUTPUT is written in the format that its suffix names. Files may
    be larger than memory. After a crash or Ctrl-C, the same command goes on where it stopped.

    Rows that cannot be served are listed in OUTPUT.errors.jsonl.
    """
    from memmodel.serve import Runner, run_batch

    runner = Runner.load(model, device, classes=classes)
    click.echo(f"{runner}", err=True)
    report = run_batch(
        runner,
        source,
        output,
        steps=steps,
        batch=batch_size,
        strict=strict,
        engine=engine,
        force=force,
        restart=restart,
        progress=True,
    )
    click.echo(f"Wrote {report.output}: {report.rows - report.failed} of {report.rows} rows served")
    for path in report.errors:
        click.echo(f"Rows that were not served, and why: {path}")


def _limit(name: str, default: int, text: str, *, least: int = 1) -> Callable[[Any], Any]:
    return click.option(
        name, type=click.IntRange(least), default=default, show_default=True, help=text
    )


@command.command("http", short_help="Serve MODEL over HTTP and gRPC (extra 'http').")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8080,
    show_default=True,
    help="Port for HTTP.",
)
@click.option(
    "--grpc-port", type=click.IntRange(1, 65535), help="Port for gRPC.  [default: no gRPC]"
)
@click.option("--name", help="The model's name in URLs.  [default: MODEL without its suffix]")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@class_option
@_limit("--max-batch", 64, "Rows rolled out together.")
@click.option(
    "--max-delay",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    help="Milliseconds to wait for more.",
)
@_limit("--max-rows", 1024, "Rows in one request.")
@_limit("--max-steps", 100_000, "Steps of one rollout.", least=0)
@_limit("--max-queue", 4096, "Rows that may wait.")
@_limit("--max-queue-mb", 512, "Megabytes that may wait.")
@_limit("--max-mb", 64, "Megabytes of one request.")
@_limit("--grace", 30, "Seconds to finish after SIGTERM.", least=0)
def http(
    model: Path,
    host: str,
    port: int,
    grpc_port: int | None,
    name: str | None,
    device: str,
    classes: tuple[type, ...],
    max_batch: int,
    max_delay: float,
    max_rows: int,
    max_steps: int,
    max_queue: int,
    max_queue_mb: int,
    max_mb: int,
    grace: int,
) -> None:
    """Serve MODEL over the Open Inference Protocol, version 2 (needs the extra 'http').

    Only this machine can reach the service unless --host says otherwise; it has no authentication
    of its own.
    """
    from memmodel.serve import Runner
    from memmodel.serve.http import Limits, serve_http

    limits = Limits(
        request_bytes=max_mb << 20,
        rows=max_rows,
        steps=max_steps,
        queue_rows=max_queue,
        queue_bytes=max_queue_mb << 20,
        batch_rows=max_batch,
        delay=max_delay / 1000,
        grace=grace,
    )
    runner = Runner.load(model, device, classes=classes)
    name = name or model.resolve().name.split(".")[0]
    url = f"http://{host}:{port}/v2/models/{name}"
    drained = serve_http(
        runner,
        name,
        host=host,
        port=port,
        grpc_port=grpc_port,
        limits=limits,
        on_ready=lambda: click.echo(f"{runner} is served at {url}", err=True),
    )
    if not drained:
        click.echo(f"memmodel: gave up requests not finished within {grace} s", err=True)
        os._exit(1)  # leaving otherwise would wait for the model
