"""Prove that a graph may write its memory in place."""

from collections import defaultdict
from collections.abc import Iterator

import onnx

from memmodel.export.errors import AliasError

_WRITES = {"TensorScatter", "ScatterND"}
# Their output may share the input's storage, so whoever reads it reads the memory.
_VIEWS = {"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}


def prove_in_place(graph: onnx.GraphProto, memory: str, memory_out: str) -> None:
    """Prove that ``memory_out`` may share the storage of ``memory``.

    A runtime that is given one buffer for both does not know it, and may run a reader of the old
    memory after the write. It cannot where every reader is an ancestor of the write.

    Args:
        graph: the graph; its nodes are in topological order.
        memory: name of the input that holds the memory.
        memory_out: name of the output that holds it with the new slot.

    Raises:
        AliasError: names the node that may read too late, or says what else is wrong.
    """
    producer = {output: node for node in graph.node for output in node.output}
    write = producer.get(memory_out)
    if write is None or write.op_type not in _WRITES or write.input[0] != memory:
        made_by = "nothing" if write is None else f"{write.op_type} of {list(write.input)}"
        raise AliasError(
            f"{memory_out!r} must be {' or '.join(sorted(_WRITES))} of {memory!r} itself, "
            f"it is made by {made_by}"
        )
    before = _ancestors(write, producer)
    consumers = _consumers(graph)
    shared = [memory]
    while shared:
        value = shared.pop()
        if value != memory and value in {output.name for output in graph.output}:
            raise AliasError(f"output {value!r} is a view of {memory!r}, which the write changes")
        for node in consumers[value]:
            if node.output[0] == write.output[0] and list(node.input).count(value) == 1:
                continue
            if node.output[0] not in before:
                raise AliasError(
                    f"{node.op_type} node {node.name!r} reads {value!r} but does not come before "
                    f"the write that makes {memory_out!r}: written in place, it could read the "
                    f"new slot where it needs the old memory"
                )
            if node.op_type in _VIEWS and node.input[0] == value:
                shared.append(node.output[0])


def _ancestors(write: onnx.NodeProto, producer: dict[str, onnx.NodeProto]) -> set[str]:
    """First outputs of all nodes that ``write`` depends on."""
    found: set[str] = set()
    pending = [write]
    while pending:
        for name in _reads(pending.pop()):
            node = producer.get(name)
            if node is not None and node.output[0] not in found:
                found.add(node.output[0])
                pending.append(node)
    return found


def _consumers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    consumers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in set(_reads(node)):
            consumers[name].append(node)
    return consumers


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Values that ``node`` reads, those its subgraphs take from outside included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                yield from _reads(inner)
