"""The cell protocol: plain methods that a module may have, each optional, each bringing one thing.

A cell is any callable ``cell(prefix[, inputs])``. What it offers besides is found by its
having the method, never by its class; there is no base class. `docs/cells.md` shows a whole one.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol, Self

from torch import Tensor, nn

from memmodel.spec import CellSpec

_LOG = logging.getLogger("memmodel")


class HasSpec(Protocol):
    """Export, serving and error messages need no example."""

    def spec(self) -> CellSpec:
        """Shapes and dtypes of slots and inputs."""
        ...


class HasConfig(Protocol):
    """A saved network is rebuilt from its directory; for heads and nested modules too."""

    def config(self) -> dict[str, Any]:
        """JSON-ready arguments of :meth:`from_config`."""
        ...

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make the module that :meth:`config` describes; its weights are loaded afterwards."""
        ...


class HasMasked(Protocol):
    """Export with the memory updated in place, and rows of different lengths in one call."""

    def masked(self, memory: Tensor, length: Tensor, *arguments: Tensor) -> Tensor:
        """Make the next slot of each row from a memory that is not filled to its end.

        Args:
            memory: ``(B, N, *slot)``; what lies past a row's length is arbitrary, NaN too, and
                must not matter.
            length: number of written slots per row, ``(B,)`` int64, each in 1..N.
            arguments: this step's input ``(B, *input)``, where the cell takes one.

        Returns:
            The next slots ``(B, *slot)``: per row what ``forward`` makes of its written slots.
        """
        ...


class HasFastRollout(Protocol):
    """A rollout of the cell's own.

    A cell may also have ``fast_rollout_applies() -> bool``: whether :meth:`fast_rollout` does, in
    the cell's present state, what calling it would; True unless there is such a method.
    """

    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        """The memory ``(B, k0 + steps, *slot)`` that calling the cell step by step would fill."""
        ...


# Other ways to compute what forward does: useless once forward does something else.
_DERIVED = ("masked", "fast_rollout")


def offered(cell: Any, name: str) -> Callable[..., Any] | None:
    """The cell's method ``name``, or None where it has none that still agrees with its class.

    Inheritance works as in Python: a bare subclass keeps everything. A subclass, or an instance,
    with a ``forward`` of its own loses what stood in for the old one (``masked`` and
    ``fast_rollout``) unless it brings those too; the log says so once.
    """
    method = getattr(cell, name, None)
    if not callable(method):
        return None
    if name in _DERIVED and _depth(cell, "forward") < _depth(cell, name):
        _say_once(type(cell), name)
        return None
    return method


def has_hooks(module: nn.Module) -> bool:
    """Whether calls of ``module``, or of a module inside it, do more than their ``forward``."""
    return nn.modules.module._has_any_global_hook() or any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        for part in module.modules()
    )


def _depth(cell: Any, name: str) -> int:
    """How far up the class hierarchy ``name`` is defined; -1: on the instance itself."""
    if name in getattr(cell, "__dict__", {}):
        return -1
    kinds = type(cell).__mro__
    return next((i for i, kind in enumerate(kinds) if name in vars(kind)), len(kinds))


_said: set[tuple[type, str]] = set()


def _say_once(kind: type, name: str) -> None:
    if (kind, name) not in _said:
        _said.add((kind, name))
        _LOG.warning(
            "%s has a forward of its own, so the %s it inherits is not used: "
            "override that too, or it runs in its plain form",
            kind.__qualname__,
            name,
        )
