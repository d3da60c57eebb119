"""The interface every format implements; sessions, batches and servers know nothing else."""

from typing import Protocol

import numpy as np

from memmodel.serve.signature import Array, Arrays, Signature


class Stream(Protocol):
    """The memory of a batch of rows between calls; all its rows are equally long."""

    @property
    def length(self) -> int:
        """Number of written slots per row."""
        ...

    def feed(self, slots: Array) -> None:
        """Append slots ``(B, L, *slot)`` that the caller knows."""
        ...

    def advance(self, steps: int, inputs: Array | None) -> Array | None:
        """Let the model write ``steps`` slots.

        Args:
            steps: how many, ≥ 1.
            inputs: ``(B, steps, *input)`` where the model takes them.

        Returns:
            The head's output ``(B, steps, ...)`` where there is a head.
        """
        ...

    def read(self, first: int = 0) -> Array:
        """Copy the written slots from ``first`` on, ``(B, length - first, *slot)``."""
        ...


class Model(Protocol):
    """A loaded artifact. Calls may come from several threads at once."""

    signature: Signature
    description: str
    device: str

    def rollout(self, start: Array, steps: int, inputs: Array | None) -> Arrays:
        """Write ``steps`` slots after ``start``; arguments have been checked.

        Returns:
            ``memory (B, k0 + steps, *slot)`` and, where there is a head,
            ``output (B, steps, ...)``.
        """
        ...

    def stream(self, batch: int) -> Stream:
        """An empty memory for ``batch`` rows, to be fed first."""
        ...


class RolloutStream:
    """A stream for models that only do whole rollouts: each call passes the memory in again.

    Every call costs O(length) on top of the model's own work; the step form does not have that
    cost.

    Args:
        model: the model that makes the slots.
        batch: number of rows.
    """

    def __init__(self, model: Model, batch: int) -> None:
        self._model = model
        shape = model.signature.slot_shape or ()
        self._memory = np.empty((batch, 0, *shape), model.signature.dtype)

    @property
    def length(self) -> int:
        """Number of written slots per row."""
        return self._memory.shape[1]

    def feed(self, slots: Array) -> None:
        """Append slots ``(B, L, *slot)``."""
        self._memory = np.concatenate([self._memory, slots], axis=1) if self.length else slots

    def advance(self, steps: int, inputs: Array | None) -> Array | None:
        """Let the model write ``steps`` slots."""
        results = self._model.rollout(self._memory, steps, inputs)
        self._memory = results["memory"]
        return results.get("output")

    def read(self, first: int = 0) -> Array:
        """Copy the written slots from ``first`` on."""
        return self._memory[:, first:].copy()
