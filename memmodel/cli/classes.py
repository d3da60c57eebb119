"""``--class PACKAGE.MODULE:CLASS``: the user's own classes, which only the user's word imports."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click


class ModuleClass(click.ParamType):
    """An importable subclass of ``torch.nn.Module``, found from the current directory too."""

    name = "MODULE:CLASS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Import the class."""
        if isinstance(value, type):
            return value
        module, separator, name = value.partition(":")
        if not (separator and module and name):
            self.fail(f"{value!r} must read PACKAGE.MODULE:CLASS", param, ctx)
        found = self._import(value, module, param, ctx)
        for part in name.split("."):
            if not hasattr(found, part):
                self.fail(f"{value!r}: {module} has no {name}", param, ctx)
            found = getattr(found, part)
        return self._check(value, found, param, ctx)

    def _import(
        self, value: str, module: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if "" not in sys.path:
            sys.path.insert(0, "")  # as `python -m` does, which the command is not
        try:
            return import_module(module)
        except Exception as error:  # the user's module may raise anything
            self.fail(f"{value!r}: {type(error).__name__}: {error}", param, ctx)

    def _check(
        self, value: str, found: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> type:
        from torch import nn

        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            self.fail(f"{value!r} must be a subclass of torch.nn.Module, got {found!r}", param, ctx)
        return found


class_option = click.option(
    "--class",
    "classes",
    type=ModuleClass(),
    multiple=True,
    metavar="MODULE:CLASS",
    help="A class of your own that the saved network is made of, as my.package:MyCell; repeatable.",
)


class JsonFile(click.Path):
    """A file that holds a JSON object."""

    name = "FILE.json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        if isinstance(value, dict):
            return value
        try:
            path = str(super().convert(value, param, ctx))
            content = json.loads(Path(path).read_text("utf-8"))
        except ValueError as error:
            self.fail(f"{value}: not JSON: {error}", param, ctx)
        if not isinstance(content, dict):
            self.fail(f"{value} must hold a JSON object, got {content!r}", param, ctx)
        return content


cell_config_option = click.option(
    "--cell-config",
    type=JsonFile(exists=True, dir_okay=False),
    metavar="FILE.json",
    help="What the --class's from_config gets beside slot_dim and input_dim.",
)


def own_cell_class(classes: tuple[type, ...]) -> type | None:
    """The cell's class where a command makes one itself.

    Raises:
        click.UsageError: more than one was given.
    """
    if len(classes) > 1:
        raise click.UsageError("--class names the cell here, so it can be given once only")
    return classes[0] if classes else None


def class_path(kind: type) -> str:
    """``MODULE:CLASS``, as it is given on the command line."""
    return f"{kind.__module__}:{kind.__qualname__}"
