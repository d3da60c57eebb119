"""What tensors a cell computes with, and how to run it with others in their place."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memmodel._rollout.ambient import fresh_parametrizations

Result = TypeVar("Result")
Cell = Callable[..., Tensor]


class CapturedCell:
    """A cell, the tensors it computes with, and a way to call it on substitutes for them.

    These are the parameters and buffers of the cell, or of every module that a function reaches
    through its closure, defaults, bound arguments and globals, and the tensors with gradients that
    it reaches in the same way.

    Attributes:
        cell: the cell.
        tensors: each tensor once, tied ones too.
        names: a readable name for each.
        buffers: whether each is a buffer.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        modules, self._bare = ([cell], []) if isinstance(cell, nn.Module) else _reach(cell)
        self._host = _Host(modules)
        with _alone_with(modules):
            named: dict[str, Tensor] = dict(self._host.named_parameters())
            buffers = dict(self._host.named_buffers())
        self.buffers = [False] * len(named) + [True] * len(buffers) + [False] * len(self._bare)
        named.update(buffers)
        self._paths = list(named)
        self._homes = [
            (i, _home(self._host, path)) for i, path in enumerate(named) if path in buffers
        ]
        self.names = [path.split(".", 2)[2] for path in named]
        self.names += [f"captured {tuple(tensor.shape)}" for tensor in self._bare]
        self.tensors = [*named.values(), *self._bare]

    def run(self, tensors: Sequence[Tensor], body: Callable[[Cell], Result]) -> Result:
        """Run ``body(cell)`` once, while ``tensors`` stand in the places of the cell's own."""
        paths, cell = self._paths, self.cell
        if self._bare:
            substitutes = zip(self._bare, tensors[len(paths) :], strict=True)
            swaps = {id(own): substitute for own, substitute in substitutes}
            cell = _rebuild(cell, lambda leaf: swaps.get(id(leaf), leaf), {})
        installed = dict(zip(paths, tensors, strict=False))
        with _alone_with(self._host.parts), fresh_parametrizations():
            return torch.func.functional_call(self._host, installed, (lambda: body(cell),))

    def replaced_buffer(self, tensors: Sequence[Tensor]) -> str | None:
        """While :meth:`run` has installed ``tensors``: a buffer that the cell has reassigned."""
        for i, (owner, attribute) in self._homes:
            if owner._buffers.get(attribute) is not tensors[i]:
                return self.names[i]
        return None


_locks: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_making_a_lock = threading.Lock()


@contextmanager
def _alone_with(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Keep other threads' rollouts from ``modules``, which hold substitutes while they run."""
    with ExitStack() as stack:
        for module in sorted(modules, key=id):  # one order for all threads: no deadlock
            with _making_a_lock:
                lock = _locks.setdefault(module, threading.RLock())
            stack.enter_context(lock)
        yield


class _Host(nn.Module):
    """Gives ``functional_call`` one module that holds all modules of a cell."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, body: Callable[[], Result]) -> Result:
        return body()


def _home(host: nn.Module, path: str) -> tuple[nn.Module, str]:
    owner, _, attribute = path.rpartition(".")
    return host.get_submodule(owner), attribute


def _reach(function: Cell) -> tuple[list[nn.Module], list[Tensor]]:
    """Modules and tensors with gradients that a function can reach."""
    modules: dict[int, nn.Module] = {}
    tensors: dict[int, Tensor] = {}

    def record(leaf: Any) -> Any:
        if isinstance(leaf, nn.Module):
            modules[id(leaf)] = leaf
        elif leaf.requires_grad:
            tensors[id(leaf)] = leaf
        return leaf

    _rebuild(function, record, {})
    owned = {id(p) for module in modules.values() for p in module.parameters()}
    return list(modules.values()), [t for key, t in tensors.items() if key not in owned]


def _rebuild(value: Any, visit: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    """Copy of ``value`` with every module and tensor in its reach replaced by ``visit(it)``.

    Follows what commonly makes up a cell that is no module; anything else is returned as it is.
    """
    if id(value) in memo:
        return memo[id(value)]
    memo[id(value)] = value  # a recursive function meets itself

    def again(part: Any) -> Any:
        return _rebuild(part, visit, memo)

    if isinstance(value, nn.Module | Tensor):
        result = visit(value)
    elif isinstance(value, FunctionType):
        result = _rebuild_function(value, again)
    elif isinstance(value, partial):
        keywords = {key: again(part) for key, part in value.keywords.items()}
        result = partial(again(value.func), *map(again, value.args), **keywords)
    elif isinstance(value, MethodType):
        result = MethodType(again(value.__func__), again(value.__self__))
    elif type(value) in (list, tuple):
        parts = [*map(again, value)]
        # What holds nothing to replace stays itself: the function may write to it.
        kept = all(part is own for part, own in zip(parts, value, strict=True))
        result = value if kept else type(value)(parts)
    elif type(value) is dict:
        entries = {key: again(part) for key, part in value.items()}
        kept = all(entries[key] is part for key, part in value.items())
        result = value if kept else entries
    else:
        for part in getattr(value, "__dict__", {}).values():
            if isinstance(part, nn.Module):
                visit(part)
        result = value
    memo[id(value)] = result
    return result


def _rebuild_function(function: FunctionType, again: Callable[[Any], Any]) -> FunctionType:
    names = set(_global_names(function.__code__)) & function.__globals__.keys()
    originals = {name: function.__globals__[name] for name in names}
    captured = {name: again(value) for name, value in originals.items() if _follow(value, function)}
    closure = tuple(_rebuild_closure_cell(cell, again) for cell in function.__closure__ or ())
    changed = any(captured[name] is not originals[name] for name in captured)
    copy = FunctionType(
        function.__code__,
        {**function.__globals__, **captured} if changed else function.__globals__,
        function.__name__,
        again(function.__defaults__),
        closure or None,
    )
    copy.__kwdefaults__ = again(function.__kwdefaults__)
    return copy


def _rebuild_closure_cell(cell: CellType, again: Callable[[Any], Any]) -> CellType:
    try:
        content = cell.cell_contents
    except ValueError:  # the enclosing function has not bound this variable
        return cell
    replaced = again(content)
    return cell if replaced is content else CellType(replaced)


def _follow(value: Any, function: FunctionType) -> bool:
    """Whether a global is worth following: not the library functions that the cell calls."""
    if isinstance(value, FunctionType):
        return value.__globals__ is function.__globals__
    return isinstance(value, nn.Module | Tensor | partial | MethodType | list | tuple | dict)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
