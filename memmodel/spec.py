"""What a cell says about the tensors it takes, so that nobody needs an example to find out."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

Shape = tuple[int, ...]


@dataclass(frozen=True)
class SlotSpec:
    """Shape and dtype of one tensor of a slot, or of a step's input.

    Attributes:
        shape: its shape without batch and slot dimension; ``()`` for a number per row.
        dtype: its dtype; None: that of the cell's floating-point parameters, float32 where it has
            none.
    """

    shape: Shape
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if not _is_shape(self.shape):
            raise ValueError(f"shape must be a tuple of sizes of at least 0, got {self.shape!r}")
        object.__setattr__(self, "shape", tuple(self.shape))


@dataclass(frozen=True)
class ContextSpec:
    """Shape and dtype of one tensor of the context, which is the same at every step.

    Attributes:
        shape: its shape, without the batch unless ``shared``; a string names a size that is free,
            such as the number of an encoder's tokens.
        dtype: as in :class:`SlotSpec`.
        shared: all rows of a batch read the same tensor, which then has no batch dimension.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if not _is_shape(tuple(0 if isinstance(size, str) else size for size in self.shape)):
            raise ValueError(f"shape must be a tuple of sizes and names, got {self.shape!r}")
        object.__setattr__(self, "shape", tuple(self.shape))


# A shape, or SlotSpec or ContextSpec leaves in a tree that torch.utils._pytree understands.
Tree = Any


@dataclass(frozen=True)
class CellSpec:
    """What a cell takes and makes: the result of its method ``spec()``.

    Attributes:
        slot: shape of a slot, without batch and slot dimension, or a tree of :class:`SlotSpec`.
        inputs: shape of one step's input, without batch and step dimension, or a tree of
            :class:`SlotSpec`; None where the cell takes none.
        dtype: dtype where ``slot``, ``inputs`` and ``context`` name none; None as in
            :class:`SlotSpec`.
        context: a :class:`ContextSpec` or a tree of them; None where the cell takes none.

    Raises:
        ValueError: ``slot`` or ``inputs`` is neither a shape nor a tree of :class:`SlotSpec`.
    """

    slot: Tree
    inputs: Tree = None
    dtype: torch.dtype | None = None
    context: Tree = None

    def __post_init__(self) -> None:
        for name in ("slot", "inputs"):
            tree = getattr(self, name)
            if _is_shape(tree):  # the short form
                tree = SlotSpec(tuple(tree))
            if tree is not None or name == "slot":
                _check_leaves(name, tree, SlotSpec)
            object.__setattr__(self, name, tree)
        if self.context is not None:
            _check_leaves("context", self.context, ContextSpec)

    def resolved(self, dtype: torch.dtype) -> "CellSpec":
        """The same with every dtype named: ``dtype`` where the spec leaves it to the parameters."""
        default = self.dtype or dtype

        def name_dtype(leaf: Any) -> Any:
            return leaf if leaf.dtype else type(leaf)(**{**vars(leaf), "dtype": default})

        slot, inputs, context = (
            tree if tree is None else tree_map(name_dtype, tree)
            for tree in (self.slot, self.inputs, self.context)
        )
        return CellSpec(slot, inputs, default, context)


def spec_of(cell: Any) -> CellSpec | None:
    """What ``cell.spec()`` says, every dtype named; None where the cell has no such method.

    Raises:
        TypeError: ``spec()`` returned something else than a :class:`CellSpec`.
    """
    method = getattr(cell, "spec", None)
    if not callable(method):
        return None
    spec = method()
    if not isinstance(spec, CellSpec):
        raise TypeError(
            f"{type(cell).__name__}.spec() must return a memmodel.CellSpec, "
            f"got {type(spec).__name__}"
        )
    return spec.resolved(_parameter_dtype(cell))


def _parameter_dtype(cell: Any) -> torch.dtype:
    parameters = cell.parameters() if isinstance(cell, torch.nn.Module) else ()
    return next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)


def _is_shape(value: Any) -> bool:
    if not isinstance(value, tuple | list):
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)


def _check_leaves(name: str, tree: Any, kind: type) -> None:
    leaves = tree_leaves(tree)
    wrong = [leaf for leaf in leaves if not isinstance(leaf, kind)]
    if wrong or not leaves:
        raise ValueError(
            f"{name} must be {'a shape or ' if kind is SlotSpec else ''}a tree of "
            f"{kind.__name__}, got {(wrong or [tree])[0]!r}"
        )
