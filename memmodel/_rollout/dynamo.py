"""Functions compiled by Dynamo and inductor that are called once per step."""

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Protocol, cast

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError


class CompiledFunction:
    """A compiled function, or the plain one, with a warning, where it cannot be compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._plain = function
        # The compiler keeps compiled forms, and limits how many, by code object: one per cell.
        own = cast(FunctionType, function)
        own = FunctionType(own.__code__.replace(), own.__globals__, own.__name__)
        options: dict[str, Any] = {"guard_filter_fn": _needed}
        self._run: Callable[..., Any] = torch.compile(own, fullgraph=True, options=options)

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._run(*arguments)
        except (TorchDynamoException, InductorError) as error:
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(
                f"{type(arguments[0]).__name__} cannot be compiled and runs uncompiled: {reason}",
                stacklevel=2,
            )
            self._run = self._plain
            return self._plain(*arguments)


class _Guard(Protocol):
    """What Dynamo tells of a guard: ``torch._dynamo.types.GuardFilterEntry``."""

    name: str
    has_value: bool
    value: object


def _needed(guards: Sequence[_Guard]) -> list[bool]:
    """Which guards to evaluate before each call: all but those on PyTorch's and Python's own code.

    ``vjp`` and ``functional_call`` make Dynamo look into dozens of functions of PyTorch. At each
    call it would ask whether they are still the same, which takes as long as a small step.
    """
    return [not (_LIBRARY.match(guard.name) and _is_code(guard)) for guard in guards]


# Where Dynamo found it. A global of the cell's own module, say, is none of these.
_LIBRARY = re.compile(
    r"G$|(G\['(torch'|__import_torch_dot_|__import_contextlib'|__builtins_dict__)"
    r"|__import__\('torch'\))"
)
_PART_OF_CODE = re.compile(
    r"\.__(kw)?defaults__|\.__closure__|\butils\._pytree\b|_dot__pytree'|\._MISSING$"
)


def _is_code(guard: _Guard) -> bool:
    value = guard.value
    code = inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)
    return code or guard.name == "G" or _PART_OF_CODE.search(guard.name) is not None
