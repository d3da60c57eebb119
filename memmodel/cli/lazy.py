"""A click group that imports a subcommand's module when the subcommand is used."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Subcommands in modules of their own: ``NAME`` is ``package.NAME.command``.

    Args:
        package: the package that holds the modules.
        subcommands: the subcommands' names and one-line descriptions, in the order of the help.
        arguments: what :class:`click.Group` takes.
    """

    def __init__(self, *, package: str, subcommands: Mapping[str, str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._package = package
        self._subcommands = subcommands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the help."""
        return list(self._subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the subcommand, or return None for a name that there is not."""
        if cmd_name not in self._subcommands:
            return None
        return import_module(f"{self._package}.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._subcommands.items()))
