"""The surroundings of a forward that its recomputation must repeat: autocast and random numbers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.utils import parametrize


def autocast_as(device_type: str, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Set autocast for ``device_type`` to ``dtype``, or off where that is None."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, dtype=dtype, enabled=dtype is not None)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype that autocast is using on ``device_type``, or None where it is off."""
    if not torch.amp.is_autocast_available(device_type):
        return None
    if not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


@contextmanager
def fresh_parametrizations() -> Iterator[None]:
    """Suspend ``torch.nn.utils.parametrize.cached``.

    What it keeps was computed from other tensors than those that stand in for a cell's own.
    """
    enabled = parametrize._cache_enabled
    if not enabled:
        yield
        return
    parametrize._cache_enabled = 0
    try:
        yield
    finally:
        parametrize._cache_enabled = enabled


def generator_state(device: torch.device) -> Tensor:
    """States of the default generators that a cell on ``device`` may draw from, as one row."""
    state = torch.get_rng_state()
    if device.type in _WITHOUT_GENERATOR:
        return state
    return torch.cat([state, torch.get_device_module(device).get_rng_state(*_which(device))])


def set_generator_state(device: torch.device, state: Tensor) -> None:
    """Undo :func:`generator_state`."""
    cpu_bytes = torch.get_rng_state().numel()
    state = state.clone()  # aligned, as the generator needs it and a row of a tape may not be
    torch.set_rng_state(state[:cpu_bytes])
    if device.type not in _WITHOUT_GENERATOR:
        own = state[cpu_bytes:]
        torch.get_device_module(device).set_rng_state(own, *_which(device))


# No generator beside the CPU's.
_WITHOUT_GENERATOR = ("cpu", "meta")


def _which(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)


def packed_size(steps: int, state_bytes: int) -> int:
    """Elements of a packed tape."""
    return steps * (1 + state_bytes) if state_bytes else 0


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

    @property
    def drew(self) -> bool:
        """Whether any step drew."""
        return bool(self._states)

    def record(self, step: int) -> None:
        """Note, after ``step``, where it started if it drew."""
        before, self._now = self._now, generator_state(self._device)
        if not torch.equal(before, self._now):
            self._states[step] = before

    def pack(self, steps: int, state_bytes: int) -> Tensor:
        """The tape as one tensor of :func:`packed_size`, for ops, which pass only tensors on.

        A flag per step, then a state per step. Those of steps that drew nothing stay untouched,
        which costs address space but no memory.
        """
        packed = torch.empty(packed_size(steps, state_bytes), dtype=torch.uint8, device="cpu")
        if not state_bytes:
            return packed
        flags, states = packed[:steps].zero_(), packed[steps:].view(steps, state_bytes)
        for step, state in self._states.items():
            flags[step] = 1
            states[step] = state
        return packed

    @classmethod
    def unpack(cls, device: torch.device, packed: Tensor, steps: int) -> "RandomTape":
        """The tape that was packed."""
        tape = cls(device)
        states = packed[steps:].view(steps, -1) if packed.numel() else packed
        tape._states = {step: states[step] for step in packed[:steps].nonzero()[:, 0].tolist()}
        return tape

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
