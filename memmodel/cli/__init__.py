"""The ``memmodel`` command.

Each subcommand lives in its own module and is imported when it is used, so that serving an ONNX
file never imports torch and one broken installation does not take the other commands with it.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from memmodel.cli.errors import report
from memmodel.cli.lazy import LazyGroup

SUBCOMMANDS = {
    "demo": "Train, export, serve and plot on real data in a few minutes.",
    "train": "Train a forecaster on your own time series.",
    "export": "Write a trained run as ONNX, TorchScript or .pt2.",
    "inspect": "Show what an exported file contains.",
    "serve": "Run a model over files or as an HTTP service.",
    "bench": "Measure time and memory of a rollout on this machine.",
}


@click.group(
    cls=LazyGroup,
    package=__name__,
    subcommands=SUBCOMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(package_name="memmodel", prog_name="memmodel", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def cli() -> None:
    """Train, export and serve networks that write their own memory.

    Exit code 2 says that the command was used wrongly, 1 that the job failed.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; errors become one line on stderr.

    Args:
        arguments: what follows the program's name; ``sys.argv[1:]`` unless given.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Users add --debug where they are: at the end of the line that failed, after the subcommand.
    debug = "--debug" in arguments
    try:
        # With standalone_mode=False click raises its errors and returns the exit code of --help.
        code = cli.main(
            [argument for argument in arguments if argument != "--debug"],
            prog_name="memmodel",
            standalone_mode=False,
        )
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        sys.exit(report(error))
    sys.exit(code if isinstance(code, int) else 0)
