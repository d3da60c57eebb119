"""Integers that stand for cells in the arguments of registered ops."""

import threading
from itertools import count
from weakref import WeakKeyDictionary, WeakValueDictionary

from torch import nn

from memmodel._rollout.compiled import CompiledCell

_lock = threading.Lock()
_numbers = count()
_handles: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_cells: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_compiled: WeakKeyDictionary[nn.Module, CompiledCell] = WeakKeyDictionary()


def handle_of(cell: nn.Module) -> int:
    """The integer that stands for ``cell`` in this process, as long as it lives.

    Small consecutive numbers, unlike ``id``, are the same in the next process, so that inductor
    finds its cached code again.
    """
    with _lock:
        if cell not in _handles:
            handle = _handles[cell] = next(_numbers)
            _cells[handle] = cell
        return _handles[cell]


def compiled_cell(handle: int) -> CompiledCell:
    """The compiled forms of the cell that ``handle`` stands for, made at its first use.

    Raises:
        RuntimeError: the cell no longer exists.
    """
    with _lock:
        cell = _cells.get(handle)
        if cell is None:
            raise RuntimeError(
                f"the cell of a compiled rollout (handle {handle}) no longer exists: keep the "
                "module alive as long as what was compiled with it"
            )
        if cell not in _compiled:
            _compiled[cell] = CompiledCell(cell)
        return _compiled[cell]
