"""Files that are either the old ones or the new ones, whenever the process dies."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from memmodel.durable import sync
from memmodel.network import MemoryNetwork
from memmodel.saved import CONFIG, WEIGHTS

CHECKPOINT = "checkpoint.pt"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint in ``directory`` by ``state`` (tensors and plain values)."""
    write_atomically(directory / CHECKPOINT, lambda path: torch.save(state, path))


def load_checkpoint(directory: Path) -> dict[str, Any] | None:
    """Load the checkpoint in ``directory`` onto the CPU, or None where there is none.

    Raises:
        ValueError: the file is not a checkpoint.
    """
    path = directory / CHECKPOINT
    if not path.is_file():
        return None
    try:
        # weights_only: a checkpoint from elsewhere cannot run code.
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is not a checkpoint that can be read: {error}") from error


def save_network(network: MemoryNetwork, directory: Path) -> None:
    """Write what :meth:`MemoryNetwork.save` writes, and force it to disk."""
    network.save(directory)
    for name in (CONFIG, WEIGHTS):
        sync(directory / name)
    sync(directory)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace ``path`` by ``content``."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` make a file beside ``path``, force it to disk, and give it its name."""
    # Always the same name: what a killed process left behind is overwritten, not collected.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
