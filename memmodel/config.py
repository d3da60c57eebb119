"""Module structure as JSON-ready dictionaries, so that a saved network needs no pickle."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from memmodel.cells import AttentionCell, RecurrentCell

Config = dict[str, Any]

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "AttentionCell": lambda **config: AttentionCell.from_config(config),
    "RecurrentCell": lambda **config: RecurrentCell.from_config(config),
    "Linear": nn.Linear,
    "Identity": nn.Identity,
    "GELU": nn.GELU,
    "ReLU": nn.ReLU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
}


def describe(module: nn.Module, role: str) -> Config:
    """Describe ``module`` as ``{"class": name, ...constructor arguments}``.

    A module that memmodel cannot build is described by its class name alone; the caller of
    :func:`build` then has to pass an instance.

    Args:
        module: the module to describe.
        role: the argument that holds it ("cell" or "head"), for messages.
    """
    kind = type(module)
    name = kind.__name__
    if kind is nn.Sequential:
        layers = [describe(layer, role) for layer in module.children()]
        if all(layer["buildable"] for layer in layers):
            return {"class": name, "buildable": True, "layers": layers}
    elif kind is nn.Linear:
        return {
            "class": name,
            "buildable": True,
            "in_features": module.in_features,
            "out_features": module.out_features,
            "bias": module.bias is not None,
        }
    elif kind is nn.GELU:
        return {"class": name, "buildable": True, "approximate": module.approximate}
    elif isinstance(module, AttentionCell | RecurrentCell):
        if _as_built(module):
            return {"class": name, "buildable": True, **module.config()}
    elif _BUILDERS.get(name) is kind:
        return {"class": name, "buildable": True}
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "buildable": False}


def _as_built(module: AttentionCell | RecurrentCell) -> bool:
    """Whether every part is of the class that the constructor gives it, and so loads as saved."""
    if type(module) not in (AttentionCell, RecurrentCell):
        return False
    with torch.device("meta"):
        fresh = _BUILDERS[type(module).__name__](**module.config())
    return [type(part) for part in fresh.modules()] == [type(part) for part in module.modules()]


def build(config: Mapping[str, Any], role: str) -> nn.Module:
    """Build the module that :func:`describe` described.

    Raises:
        ValueError: memmodel does not know how to build that class.
    """
    arguments = dict(config)
    name = arguments.pop("class")
    if not arguments.pop("buildable"):
        raise ValueError(
            f"{role} is a {name}, which memmodel does not build by itself: "
            f"pass an instance as {role}=... and its saved weights are loaded into it"
        )
    if name == "Sequential":
        return nn.Sequential(*(build(layer, role) for layer in arguments["layers"]))
    if name not in _BUILDERS:
        raise ValueError(f"{role} names an unknown class {name!r}; known: {sorted(_BUILDERS)}")
    return _BUILDERS[name](**arguments)
