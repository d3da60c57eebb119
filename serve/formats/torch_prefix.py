"""The memory of a torch model that takes prefixes: views of one preallocated tensor."""

from collections.abc import Callable

import torch
from torch import Tensor

from memmodel.serve.formats.torch_device import to_array, to_tensor
from memmodel.serve.signature import Array

_FIRST_SLOTS = 64

# (prefix (B, k, *slot), steps, inputs (B, steps, *input) or None)
# -> new slots (B, steps, *slot) and, where there is a head, output (B, steps, ...)
Advance = Callable[[Tensor, int, Tensor | None], tuple[Tensor, Tensor | None]]


class TorchPrefixStream:
    """Batch-first memory ``(B, N, *slot)``, doubled when it is full.

    Args:
        advance: makes new slots from the prefix.
        batch: number of rows.
        device: where the memory lives.
    """

    def __init__(self, advance: Advance, batch: int, device: torch.device) -> None:
        self._advance = advance
        self._batch = batch
        self._device = device
        self._memory: Tensor | None = None
        self.length = 0

    def feed(self, slots: Array) -> None:
        """Append slots ``(B, L, *slot)``."""
        self._append(to_tensor(slots, self._device))

    @torch.inference_mode()
    def advance(self, steps: int, inputs: Array | None) -> Array | None:
        """Let the model write ``steps`` slots."""
        values = None if inputs is None else to_tensor(inputs, self._device)
        slots, output = self._advance(self._written(), steps, values)
        self._append(slots)
        return None if output is None else to_array(output)

    def read(self, first: int = 0) -> Array:
        """Copy the written slots from ``first`` on."""
        return to_array(self._written()[:, first:])

    def _written(self) -> Tensor:
        if self._memory is None:
            raise RuntimeError("the memory is empty")
        return self._memory[:, : self.length]

    @torch.inference_mode()
    def _append(self, slots: Tensor) -> None:
        end = self.length + slots.shape[1]
        if self._memory is None or end > self._memory.shape[1]:
            capacity = max(end, 2 * self.length, _FIRST_SLOTS)
            grown = slots.new_zeros((self._batch, capacity, *slots.shape[2:]))
            if self._memory is not None:
                grown[:, : self.length] = self._written()
            self._memory = grown
        self._memory[:, self.length : end] = slots
        self.length = end
