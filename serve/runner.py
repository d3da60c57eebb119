"""Run a trained network on NumPy arrays, whatever it was exported as."""

from collections.abc import Sequence
from pathlib import Path

from numpy.typing import ArrayLike

from memmodel.serve.formats import Model, load_model
from memmodel.serve.session import Session
from memmodel.serve.signature import Arrays, Signature


class Runner:
    """A loaded model: rollouts and streaming sessions. Safe to call from several threads.

    Make one with :meth:`load`.

    Args:
        model: the loaded model.
        path: what it was loaded from.
        classes: classes of the user's own that loading it takes.
    """

    def __init__(self, model: Model, path: str | Path, classes: Sequence[type] = ()) -> None:
        self._model = model
        self.path = Path(path)
        self.classes = tuple(classes)

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        *,
        threads: int | None = None,
        classes: Sequence[type] = (),
    ) -> "Runner":
        """Load an exported file or a saved run.

        ``.onnx`` files run on ONNX Runtime and import no torch; TorchScript, ``.pt2`` and
        AOTInductor files and run directories run on torch. One line on the ``memmodel.serve`` log
        says which device is used.

        Args:
            path: an artifact of ``memmodel.export``, or a directory of ``MemoryNetwork.save``.
            device: "auto" (a GPU if the runtime can use one, else the CPU), "cpu", "cuda" or
                "cuda:N".
            threads: CPU threads for one call; None: one per core.
            classes: classes of the user's own that a saved run is made of; exported files need
                none.

        Raises:
            FileNotFoundError: there is nothing at ``path``.
            TypeError: ``classes`` holds something else than module classes.
            ValueError: ``path`` is no such model, or is damaged or too new; a bad ``device``.
            RuntimeError: the device asked for cannot be used.
        """
        return cls(load_model(path, device, threads, classes), path, classes)

    @property
    def signature(self) -> Signature:
        """Shapes and dtype of what the model takes and gives."""
        return self._model.signature

    @property
    def device(self) -> str:
        """The device in use, "cpu" or "cuda:N"."""
        return self._model.device

    def rollout(self, start: ArrayLike, steps: int, inputs: ArrayLike | None = None) -> Arrays:
        """Let the network write ``steps`` slots after ``start``.

        Args:
            start: slots present before the rollout, ``(B, k0, *slot)`` with k0 ≥ 1.
            steps: number of slots to write, ≥ 0.
            inputs: per-step inputs ``(B, steps, *input)``, where the cell takes them.

        Returns:
            ``memory (B, k0 + steps, *slot)`` and, where there is a head,
            ``output (B, steps, ...)``, in the model's dtype.

        Raises:
            TypeError: an argument is not made of numbers.
            ValueError: an argument breaks one of the rules above, or a size that the artifact
                fixes.
        """
        slots = self.signature.check_start(start, steps)
        values = self.signature.check_inputs(inputs, slots.shape[0], int(steps))
        return self._model.rollout(slots, int(steps), values)

    def session(self, batch: int) -> Session:
        """Open a stream of ``batch`` rows that keeps its memory between calls.

        Raises:
            TypeError: ``batch`` is no integer.
            ValueError: ``batch`` is less than 1, or the artifact fixes the number of steps.
        """
        return Session(self._model, batch)

    def __repr__(self) -> str:
        return f"Runner({self._model.description} on {self.device})"
