"""The network: a cell rolled out over its own memory, and an optional head on the new slots."""

import json
from pathlib import Path

import safetensors.torch
from torch import Tensor, nn

from memmodel._rollout import rollout
from memmodel.config import build, describe

FORMAT_VERSION = 1
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"


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
            ValueError: an argument breaks one of the rules above.
        """
        memory = rollout(self.cell, start, steps, inputs)
        return memory if self.head is None else self.head(memory[:, start.shape[1] :])

    def save(self, directory: str | Path) -> None:
        """Save weights (safetensors) and structure (JSON) into ``directory``, made if needed."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "format_version": FORMAT_VERSION,
            "cell": describe(self.cell, "cell"),
            "head": None if self.head is None else describe(self.head, "head"),
        }
        safetensors.torch.save_model(self, str(directory / _WEIGHTS))
        (directory / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        cell: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> "MemoryNetwork":
        """Load a network that :meth:`save` wrote, on the CPU.

        Args:
            directory: where the network was saved.
            cell: an instance for the weights to be loaded into, for a cell of the user's own class.
            head: likewise for the head.

        Raises:
            FileNotFoundError: ``directory`` holds no saved network.
            ValueError: the format is newer than this memmodel, or a class of the user's own is
                needed and was not passed.
        """
        directory = Path(directory)
        path = directory / _CONFIG
        if not path.is_file():
            raise FileNotFoundError(f"directory must hold a saved network, but {path} is missing")
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["format_version"] > FORMAT_VERSION:
            raise ValueError(
                f"{path} has format_version {config['format_version']}, "
                f"this memmodel reads up to {FORMAT_VERSION}: upgrade memmodel"
            )
        cell = cell or build(config["cell"], "cell")
        if head is None and config["head"] is not None:
            head = build(config["head"], "head")
        network = cls(cell, head)
        safetensors.torch.load_model(network, str(directory / _WEIGHTS))
        return network
