"""Errors of the exporters."""


class ExportError(RuntimeError):
    """A network cannot be written in the wanted format."""


class ParityError(ExportError):
    """An artifact gives other numbers than the network; it has been deleted."""


class AliasError(ExportError):
    """A graph reads the memory where a write in place may already have changed it."""
