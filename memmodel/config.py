"""Module structure as JSON-ready dictionaries, so that a saved network needs no pickle.

A module is described by its class's name and by how it is built: from its ``config()`` by its
class's ``from_config``, by its constructor without arguments, or only as an instance that the
loading program makes. Names found in a file are looked up among the classes that memmodel knows and
those that the caller hands in; none is ever imported.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from memmodel.cells import AttentionCell, RecurrentCell

Config = dict[str, Any]
ModuleClass = type[nn.Module]

_OWN: tuple[Any, ...] = (AttentionCell, RecurrentCell)
# Constructor arguments that are attributes of the same name.
_TORCH: dict[ModuleClass, tuple[str, ...]] = {
    nn.Dropout: ("p",),
    nn.ELU: ("alpha",),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.GELU: ("approximate",),
    nn.Hardswish: (),
    nn.Identity: (),
    nn.LayerNorm: ("normalized_shape", "eps", "elementwise_affine"),
    nn.LeakyReLU: ("negative_slope",),
    nn.Linear: ("in_features", "out_features"),
    nn.LogSoftmax: ("dim",),
    nn.Mish: (),
    nn.ReLU: (),
    nn.Sigmoid: (),
    nn.SiLU: (),
    nn.Softmax: ("dim",),
    nn.Softplus: ("beta", "threshold"),
    nn.Tanh: (),
}
_WITH_BIAS = (nn.Linear, nn.LayerNorm)
_KNOWN: dict[str, ModuleClass] = {kind.__name__: kind for kind in (*_OWN, *_TORCH, nn.Sequential)}


def describe(module: nn.Module, role: str) -> Config:
    """Describe ``module`` as ``{"class": name, "build": how, ...}``.

    Args:
        module: the module to describe.
        role: the argument that holds it ("cell" or "head"), for messages.

    Raises:
        ValueError: its ``config()`` is no JSON object, or its ``from_config`` does not take it.
    """
    kind = type(module)
    name = kind.__name__ if _KNOWN.get(kind.__name__) is kind else _full_name(kind)
    if kind is nn.Sequential:
        layers = [describe(layer, role) for layer in module.children()]
        return {"class": name, "build": "layers", "layers": layers}
    if kind in _TORCH:
        return {"class": name, "build": "config", "config": _torch_config(module)}
    config = _config_of(module, role)
    if config is not None:
        if _as_built(module, lambda: from_config(kind, config, role)):
            return {"class": name, "build": "config", "config": config}
    elif _takes_nothing(kind) and _as_built(module, lambda: _made(kind, kind, f"{name}()", role)):
        return {"class": name, "build": "constructor"}
    return {"class": name, "build": "instance"}


def build(config: Mapping[str, Any], role: str, classes: Sequence[ModuleClass] = ()) -> nn.Module:
    """Build the module that :func:`describe` described.

    Args:
        config: the description.
        role: the argument that holds it ("cell" or "head"), for messages.
        classes: classes of the user's own that it may name.

    Raises:
        ValueError: a class is needed that was not handed in, or it does not build.
    """
    config = _current(config)
    name, how = config["class"], config["build"]
    if how == "layers":
        return nn.Sequential(*(build(layer, role, classes) for layer in config["layers"]))
    if how == "instance":
        raise ValueError(
            f"{role} is a {name}, which memmodel does not build by itself: "
            f"pass an instance as {role}=... and its saved weights are loaded into it"
        )
    kind = _find(name, role, classes)
    if how == "constructor":
        return _made(kind, kind, f"{name}()", role)
    if kind in _TORCH:
        return kind(**config["config"])
    return from_config(kind, config["config"], role)


def check_classes(classes: Sequence[Any]) -> None:
    """Raise TypeError unless all ``classes`` are classes of modules."""
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise TypeError(f"classes must be subclasses of torch.nn.Module, got {kind!r}")


def from_config(kind: Any, config: Config, role: str) -> nn.Module:
    """Let a class build what ``config`` describes.

    Raises:
        ValueError: it has no ``from_config``, which raised, or made something else.
    """
    make = getattr(kind, "from_config", None)
    if not callable(make):
        raise ValueError(f"{role}: {kind.__name__} has no from_config to build what was saved")
    return _made(lambda: make(dict(config)), kind, f"{kind.__name__}.from_config({config})", role)


def _find(name: str, role: str, classes: Sequence[ModuleClass]) -> ModuleClass:
    if name in _KNOWN:
        return _KNOWN[name]
    exact = [kind for kind in classes if _full_name(kind) == name]
    # A script's classes are in __main__ when it saves, and elsewhere when another program loads.
    alike = [kind for kind in classes if name.endswith(f".{kind.__qualname__}")]
    for found in (exact, alike):
        if found:
            return found[0]
    module, _, short = name.rpartition(".")
    raise ValueError(
        f"{role} is a {name}, which memmodel does not build by itself: pass its class as "
        f"classes=[{short}] (--class {module}:{short}), or pass an instance as {role}=... and its "
        "saved weights are loaded into it"
    )


def _config_of(module: nn.Module, role: str) -> Config | None:
    """What ``module.config()`` says; None where the module has no config and ``from_config``."""
    methods = (getattr(module, "config", None), getattr(type(module), "from_config", None))
    if not all(map(callable, methods)):
        return None
    config = module.config()  # type: ignore[operator]
    try:
        if not isinstance(config, dict):
            raise TypeError(f"it is a {type(config).__name__}")
        return json.loads(json.dumps(config))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{role}: {type(module).__name__}.config() must return a dictionary that JSON can "
            f"hold: {error}"
        ) from error


def _made(make: Callable[[], Any], kind: ModuleClass, call: str, role: str) -> nn.Module:
    """What ``make`` returns; what it raises is the user's code's, so any error is told as one."""
    try:
        module = make()
    except Exception as error:
        raise ValueError(f"{role}: {call} failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, kind):
        raise ValueError(f"{role}: {call} must make a {kind.__name__}, got {type(module).__name__}")
    return module


def _as_built(module: nn.Module, make: Callable[[], nn.Module]) -> bool:
    """Whether every part is of the class that building gives it, and so loads as saved."""
    with torch.random.fork_rng(devices=[]):  # modules are built on the CPU
        try:
            with torch.device("meta"):
                fresh = make()
        except (ValueError, RuntimeError, NotImplementedError):  # needs values, or truly fails
            fresh = make()
    parts = zip(fresh.modules(), module.modules(), strict=False)
    same_parts = all(type(new) is type(old) for new, old in parts)
    return same_parts and len([*fresh.modules()]) == len([*module.modules()])


def _takes_nothing(kind: ModuleClass) -> bool:
    """Whether the constructor can be called without arguments."""
    try:
        inspect.signature(kind).bind()
    except TypeError:
        return False
    return True


def _torch_config(module: nn.Module) -> Config:
    config = {name: getattr(module, name) for name in _TORCH[type(module)]}
    if isinstance(module, _WITH_BIAS):
        config["bias"] = module.bias is not None
    return config


def _current(config: Mapping[str, Any]) -> Config:
    """A description in today's form; the first format kept the arguments beside the class."""
    if "build" in config:
        return dict(config)
    arguments = dict(config)
    name, buildable = arguments.pop("class"), arguments.pop("buildable")
    if not buildable:
        return {"class": name, "build": "instance"}
    if name not in _KNOWN:
        raise ValueError(f"saved networks of format 1 know {sorted(_KNOWN)}, got {name!r}")
    if "layers" in arguments:
        return {"class": name, "build": "layers", "layers": arguments["layers"]}
    return {"class": name, "build": "config", "config": arguments}


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
