"""Files of a saved network: weights as safetensors, structure as JSON, no pickle."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

FORMAT_VERSION = 2
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
_KEYS = {"format_version", "cell", "head", "ties"}


def save(module: nn.Module, config: dict[str, Any], directory: Path) -> None:
    """Write ``module``'s weights and ``config`` into ``directory``, made if needed.

    Each file appears whole or not at all. The weights carry the config's digest, so that
    :func:`read` notices a save that was interrupted between them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    state, ties = _without_ties(module)
    config = {"format_version": FORMAT_VERSION, **config, "ties": ties}
    text = json.dumps(config, indent=2) + "\n"
    weights_part, config_part = directory / f".{WEIGHTS}.tmp", directory / f".{CONFIG}.tmp"
    try:
        save_file(state, weights_part, metadata={"config": _digest(text)})
        config_part.write_text(text, encoding="utf-8")
        # safetensors lets nobody else read its files; ours follow the umask, as this one does.
        weights_part.chmod(config_part.stat().st_mode & 0o777)
        os.replace(weights_part, directory / WEIGHTS)
        os.replace(config_part, directory / CONFIG)
    finally:
        weights_part.unlink(missing_ok=True)
        config_part.unlink(missing_ok=True)


def read(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What :func:`save` wrote: the config and the weights, on the CPU.

    Raises:
        FileNotFoundError: ``directory`` lacks one of the two files.
        ValueError: a file is damaged or of a newer format, or the two are of different saves.
    """
    for path in (directory / CONFIG, directory / WEIGHTS):
        if not path.is_file():
            unfinished = (directory / "checkpoint.pt").is_file()
            hint = ": finish its training with memmodel train --resume" if unfinished else ""
            raise FileNotFoundError(
                f"directory must hold a saved network, but {path} is missing{hint}"
            )
    config = _read_config(directory / CONFIG)
    try:
        with safe_open(directory / WEIGHTS, framework="pt") as file:
            digest = (file.metadata() or {}).get("config")
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{directory / WEIGHTS} is damaged: {error}") from error
    if digest != _digest((directory / CONFIG).read_text(encoding="utf-8")):
        raise ValueError(
            f"{directory} holds weights that were not saved with its {CONFIG}: "
            "a save was interrupted or a file was changed, so save the network again"
        )
    return config, state


def load_state(module: nn.Module, state: dict[str, Tensor], ties: dict[str, str]) -> None:
    """Put ``state`` in the place of ``module``'s own tensors, tied as they were.

    Raises:
        ValueError: names or shapes differ from the module's.
    """
    own = module.state_dict()
    expected = {name: tuple(own[name].shape) for name in own if name not in ties}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != found:
        name = next(name for name in expected | found if expected.get(name) != found.get(name))
        raise ValueError(
            f"saved weights must fit the network, but {name!r} has shape {found.get(name)} there "
            f"and {expected.get(name)} in the network (None: not there)"
        )
    tied = {name: state[kept] for name, kept in ties.items()}
    module.load_state_dict({**state, **tied}, assign=True)
    for name, kept in ties.items():
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, _tensor_at(module, kept))


def _tensor_at(module: nn.Module, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    return getattr(module.get_submodule(owner), attribute)


def _without_ties(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state dict with every tied tensor once, and what other names it has."""
    names: dict[int, str] = {}
    state: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        kept = names.setdefault(id(tensor), name)
        if kept != name:
            ties[name] = kept
            continue
        plain = tensor.detach().contiguous()
        # A view of a larger storage would be saved with all of it.
        shared = plain.untyped_storage().nbytes() != plain.nbytes
        state[name] = plain.clone() if shared else plain
    return state, ties


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not UTF-8
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(config, dict) or not config.keys() >= _KEYS:
        raise ValueError(f"{path} does not describe a network that memmodel saved")
    if config["format_version"] > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format_version {config['format_version']}, "
            f"this memmodel reads up to {FORMAT_VERSION}: upgrade memmodel"
        )
    return config
