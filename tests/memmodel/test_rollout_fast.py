"""When a cell's own rollout stands in for running the cell step by step."""

from collections.abc import Callable

import pytest
import torch
from rollout_cells import D, Mean, cat_loop
from torch import Tensor, nn

from memmodel import rollout


class Fast(Mean):
    """Claims a rollout of its own, which leaves a trace."""

    applies = True

    def forward(self, prefix: Tensor, inputs: Tensor | None = None) -> Tensor:
        return super().forward(prefix, inputs)

    def fast_rollout_applies(self) -> bool:
        return self.applies

    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
        return cat_loop(self, start, steps, inputs) + 100


class Overriding(Fast):
    def forward(self, prefix: Tensor, inputs: Tensor | None = None) -> Tensor:
        return super().forward(prefix, inputs)


class Inheriting(Fast):
    pass


class OverridingBoth(Overriding):
    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        return super().fast_rollout(start, steps, inputs)


class Unconditional(Mean):
    """Has no ``fast_rollout_applies``."""

    def fast_rollout(self, start: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        return cat_loop(self, start, steps, inputs) + 100


def hooked(kind: str) -> Fast:
    cell = Fast()
    target = cell if kind != "child" else cell.layer
    register: Callable[..., object] = {
        "pre": target.register_forward_pre_hook,
        "backward": target.register_full_backward_hook,
    }.get(kind, target.register_forward_hook)
    register(lambda *_: None)
    return cell


def replaced() -> Fast:
    cell = Fast()
    cell.forward = cell.forward  # type: ignore[method-assign]
    return cell


def unfit() -> Fast:
    cell = Fast()
    cell.applies = False
    return cell


SLOW: dict[str, Callable[[], nn.Module]] = {
    "a subclass that overrides forward": Overriding,
    "a forward hook": lambda: hooked("forward"),
    "a pre-hook": lambda: hooked("pre"),
    "a backward hook": lambda: hooked("backward"),
    "a hook on a layer": lambda: hooked("child"),
    "forward replaced": replaced,
    "the cell says no": unfit,
}


def is_fast(cell: nn.Module, *, recompute: bool = True) -> bool:
    memory = rollout(cell, torch.zeros(2, 1, D), 3, recompute=recompute)
    return bool((memory >= 99).all())


@pytest.mark.parametrize("kind", [Fast, Inheriting, OverridingBoth, Unconditional])
def test_used_unless_a_newer_forward_left_it_behind(kind: type[nn.Module]) -> None:
    assert is_fast(kind())
    assert not is_fast(kind(), recompute=False)


def test_the_log_says_once_that_it_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    class Newer(Fast):
        def forward(self, prefix: Tensor, inputs: Tensor | None = None) -> Tensor:
            return prefix[:, -1]

    for _ in range(2):
        assert not is_fast(Newer())
    (message,) = caplog.messages
    assert "Newer has a forward of its own" in message
    assert "fast_rollout" in message


def test_not_used_with_hooks_on_all_modules() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not is_fast(Fast())
    finally:
        handle.remove()


@pytest.mark.parametrize("make", SLOW.values(), ids=SLOW)
def test_not_used_where_a_call_would_do_something_else(make: Callable[[], nn.Module]) -> None:
    assert not is_fast(make())
