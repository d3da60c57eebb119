"""Serve one window of rows."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from memmodel.serve.batch.plan import Plan
from memmodel.serve.batch.rows import BadRow, Reader, Row
from memmodel.serve.runner import Runner
from memmodel.serve.signature import Array


@dataclass
class Window:
    """The results of one window, rows in input order.

    Attributes:
        lengths: slots per row, ``(n,)`` int64; 0 for a row that was not served.
        memory: the memories of the served rows one after the other, ``(sum of lengths, *slot)``.
        output: ``(served rows, steps, ...)`` where there is a head.
        errors: row number and reason of each row that was not served.
    """

    lengths: Array
    memory: Array
    output: Array | None
    errors: dict[int, str] = field(default_factory=dict)


def serve_window(runner: Runner, reader: Reader, plan: Plan, index: int, dense: bool) -> Window:
    """Read, check and serve the rows of one window.

    Rows of equal k0 form batches; a bad row is left out of its batch.

    Args:
        runner: the model.
        reader: the input.
        plan: the partition.
        index: which window.
        dense: whether the output can only hold rows of the plan's k0.
    """
    first, stop = plan.bounds(index)
    rows = reader.read(first, stop)
    errors: dict[int, str] = {}
    groups: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        reason = _refuse(row, plan, dense)
        if reason is None:
            groups[len(row.start)].append(i)  # type: ignore[union-attr]
        else:
            errors[first + i] = reason
    memories: dict[int, Array] = {}
    outputs: dict[int, Array] = {}
    for members in groups.values():
        for at in range(0, len(members), plan.batch):
            batch = members[at : at + plan.batch]
            results = _rollout(runner, [rows[i] for i in batch], plan.steps)
            memories.update(zip(batch, results["memory"], strict=True))
            if "output" in results:
                outputs.update(zip(batch, results["output"], strict=True))
    lengths = [len(memories[i]) if i in memories else 0 for i in range(len(rows))]
    return Window(
        lengths=np.array(lengths, np.int64),
        memory=_storable([memories[i] for i in sorted(memories)], np.concatenate),
        output=_storable([outputs[i] for i in sorted(outputs)], np.stack) if outputs else None,
        errors=errors,
    )


def _refuse(row: Row | BadRow, plan: Plan, dense: bool) -> str | None:
    if isinstance(row, BadRow):
        return row.reason
    if dense and len(row.start) != plan.k0:
        return (
            f"start has length {len(row.start)}, but a {plan.suffix} file holds rows of one length "
            f"only, {plan.k0}; .parquet takes any"
        )
    return None


def _rollout(runner: Runner, rows: Sequence[Row | BadRow], steps: int) -> dict[str, Array]:
    good = [row for row in rows if isinstance(row, Row)]
    start = np.stack([row.start for row in good])
    inputs = [row.inputs for row in good if row.inputs is not None]
    return runner.rollout(start, steps, np.stack(inputs) if inputs else None)


def _storable(arrays: list[Array], join: Callable[[list[Array]], Array]) -> Array:
    if not arrays:
        return np.empty((0,), np.float32)
    joined = join(arrays)
    # The file formats of NumPy and Arrow have no bfloat16; float32 holds every one of its values.
    return joined.astype(np.float32) if joined.dtype == ml_dtypes.bfloat16 else joined
