"""When a cell's own rollout may stand in for running the cell step by step."""

from typing import Any, Protocol, TypeGuard, cast

from torch import Tensor, nn


class FastCell(Protocol):
    """A cell with a rollout of its own."""

    def fast_rollout_applies(self) -> bool:
        """Whether :meth:`fast_rollout` does, in the cell's present state, what calling it would."""
        ...

    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
        """The memory that calling the cell step by step would fill."""
        ...


def has_fast_path(cell: Any) -> TypeGuard[FastCell]:
    """Whether ``cell.fast_rollout`` computes what calling ``cell`` would.

    A subclass that overrides ``forward`` alone, an instance whose ``forward`` was replaced and a
    module with hooks all change what a call does, so they are rolled out step by step.
    """
    if not isinstance(cell, nn.Module):
        return False
    if not {"forward", "fast_rollout"} <= type(cell).__dict__.keys() or "forward" in cell.__dict__:
        return False
    hooked = nn.modules.module._has_any_global_hook() or any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in cell.modules()
    )
    return not hooked and cast(FastCell, cell).fast_rollout_applies()
