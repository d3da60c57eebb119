"""The network: a cell rolled out over its own memory, and an optional head on the new slots."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from memmodel import saved
from memmodel._rollout import rollout
from memmodel.config import build, check_classes, describe


class MemoryNetwork(nn.Module):
    """Rolls ``cell`` out from ``start`` and applies ``head`` to the slots it wrote.

    Args:
        cell: makes the next slot ``(B, *slot)`` from a prefix ``(B, k, *slot)`` and, optionally,
            the step's input; any ``nn.Module`` with that signature.
        head: maps the new slots ``(B, steps, *slot)`` to the output ``(B, steps, ...)``.
    """

    def __init__(self, cell: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.cell = cell
        self.head = head

    def forward(self, start: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        """Write ``steps`` slots after ``start``.

        Args:
            start: slots present before the rollout, ``(B, k0, *slot)`` with k0 ≥ 1.
            steps: number of slots to write, ≥ 0.
            inputs: per-step inputs ``(B, steps, ...)``, where the cell takes them.

        Returns:
            The memory ``(B, k0 + steps, *slot)``, or ``head(new slots)`` where there is a head.

        Raises:
            TypeError, ValueError, RuntimeError: as in :func:`memmodel.rollout`.
        """
        memory = rollout(self.cell, start, steps, inputs)
        return memory if self.head is None else self.head(memory[:, start.shape[1] :])

    def save(self, directory: str | Path) -> None:
        """Save weights (safetensors) and structure (JSON) into ``directory``, made if needed.

        Weights are saved in their dtype, tied ones once. Of a class of the user's own, what its
        ``config()`` says is saved beside its name, and :meth:`load` builds it by ``from_config``
        or, where there is none, by its constructor without arguments. A module whose parts are not
        those that building it gives has to be passed to :meth:`load` as an instance.

        Raises:
            ValueError: a ``config()`` is no JSON object, or ``from_config`` does not take it;
                nothing is written.
        """
        config = {
            "cell": describe(self.cell, "cell"),
            "head": None if self.head is None else describe(self.head, "head"),
        }
        saved.save(self, config, Path(directory))

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        classes: Sequence[type[nn.Module]] = (),
        cell: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> "MemoryNetwork":
        """Load a network that :meth:`save` wrote, on the CPU.

        No name found in a file is imported: classes of the user's own are handed in.

        Args:
            directory: where the network was saved.
            classes: the classes of the user's own that cell and head are made of.
            cell: an instance for the weights to be loaded into, instead of building it.
            head: likewise for the head.

        Raises:
            FileNotFoundError: ``directory`` holds no saved network.
            TypeError: ``classes`` holds something else than module classes.
            ValueError: a file is damaged, the format is newer than this memmodel, a class of the
                user's own is needed and was not passed or does not build, or the weights do not
                fit what was.
        """
        check_classes(classes)
        config, state = saved.read(Path(directory))
        cell = build(config["cell"], "cell", classes) if cell is None else cell
        if head is None and config["head"] is not None:
            head = build(config["head"], "head", classes)
        network = cls(cell, head)
        saved.load_state(network, state, config["ties"])
        return network
