"""Capture a network's graph with torch.export."""

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from memmodel.export.errors import ExportError
from memmodel.export.quiet import quiet
from memmodel.export.recurrent import use_aten, whole_recurrent_calls

Dims = dict[int, Any] | None
BATCH, SLOTS = Dim.DYNAMIC, Dim.DYNAMIC


def capture(
    module: nn.Module, args: Sequence[Tensor], shapes: Sequence[Dims], *, strict: bool
) -> ExportedProgram:
    """Export ``module`` as aten ops.

    Args:
        module: takes ``args``.
        args: example tensors.
        shapes: free dimensions of each argument.
        strict: capture by bytecode (needed for a loop whose body closes over tensors) rather than
            by running.

    Raises:
        ExportError: the module cannot be captured with these free dimensions.
    """
    try:
        with quiet(), whole_recurrent_calls():
            return torch.export.export(
                module.eval(), tuple(args), dynamic_shapes=tuple(shapes), strict=strict
            )
    except Exception as error:
        inner = getattr(module, "cell", module)
        raise ExportError(
            f"torch.export cannot capture {type(inner).__name__}: {type(error).__name__}: {error}"
        ) from error


def make_storable(program: ExportedProgram) -> None:
    """Rewrite what ``torch.export.save`` cannot write, and refuse what others cannot load.

    Raises:
        ExportError: the graph holds an op of a Python library.
    """
    use_aten(program.graph_module)
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.target is torch.ops.higher_order.while_loop:
                    # Tells autograd and functionalisation what is mutated; the file needs neither.
                    node.kwargs = {}
                elif node.target is torch.sym_sum:
                    _spell_out_sum(node)
            module.recompile()
    foreign = sorted(_foreign_ops(program))
    if foreign:
        raise ExportError(f".pt2 files may hold aten ops only, cell or head use {foreign}")


def load_program(path: Path) -> Callable[..., Any]:
    """Load a program from its file, as a function."""
    with quiet():
        program: Callable[..., Any] = torch.export.load(path).module()
    return program


def _spell_out_sum(node: torch.fx.Node) -> None:
    """``sym_sum([a, b, c])`` as ``a + b + c``."""
    terms: Any = node.args[0]
    total = terms[0]
    with node.graph.inserting_before(node):
        for term in terms[1:]:
            value = _value(total) + _value(term)
            total = node.graph.call_function(operator.add, (total, term))
            total.meta["val"] = value
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)


def _value(term: Any) -> Any:
    return term.meta["val"] if isinstance(term, torch.fx.Node) else term


def _foreign_ops(program: ExportedProgram) -> set[str]:
    return {
        str(node.target)
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace != "aten"
    }
