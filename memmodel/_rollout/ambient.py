"""The surroundings of a forward that its recomputation must repeat: autocast and random numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def autocast_as(device_type: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Set autocast for ``device_type`` to ``dtype``, or off where that is None."""
    with torch.autocast(device_type, dtype=dtype, enabled=dtype is not None):
        yield


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype that autocast is using on ``device_type``, or None where it is off."""
    if not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def generator_state(device: torch.device) -> Tensor:
    """States of the default generators that a cell on ``device`` may draw from, as one row."""
    state = torch.get_rng_state()
    if device.type == "cpu":
        return state
    return torch.cat([state, torch.get_device_module(device).get_rng_state(device)])


def set_generator_state(device: torch.device, state: Tensor) -> None:
    """Undo :func:`generator_state`."""
    cpu_bytes = torch.get_rng_state().numel()
    torch.set_rng_state(state[:cpu_bytes])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state[cpu_bytes:], device)


class RandomTape:
    """Generator states before each step that draws random numbers, so that it can draw them again.

    Args:
        device: where the cell computes; the tape begins with the state at construction.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._now = generator_state(device)
        self._states: dict[int, Tensor] = {}

    def recording(self) -> Iterator["RandomTape"]:
        self._before = generator_state(self._device)
        yield self
        del self._before

    def record(self, step: int) -> None:
        """Note, after ``step``, where it started if it drew."""
        before, self._now = self._now, generator_state(self._device)
        if not torch.equal(before, self._now):
            self._states[step] = before

    def rewind(self, step: int) -> None:
        """Let ``step`` draw what it drew."""
        if step in self._states:
            set_generator_state(self._device, self._states[step])

    @contextmanager
    def replaying(self) -> Iterator["RandomTape"]:
        """Leave the generators as they were, whatever is replayed inside."""
        if not self._states:
            yield self
            return
        current = generator_state(self._device)
        try:
            yield self
        finally:
            set_generator_state(self._device, current)
