"""Parquet files with a list column ``start`` and, where the model takes them, ``inputs``."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memmodel.serve.batch.rows import BadRow, Row, check_row
from memmodel.serve.signature import Array, Signature

_DECODE_ROWS = 1024  # decoded at a time, whatever the size of the row groups


class ParquetReader:
    """Rows of list columns; k0 may differ from row to row.

    A ``start`` is a list of slots, nested like the slot's shape, or one flat list of all numbers;
    ``inputs`` likewise.

    Args:
        path: the file.
        signature: what the model takes.
        steps: steps of the rollouts.

    Raises:
        ValueError: the file is damaged, or its columns are not what the model takes.
    """

    def __init__(self, path: Path, signature: Signature, steps: int) -> None:
        try:
            self._file = pq.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path} is no Parquet file, or it is damaged: {error}") from error
        self._path, self._signature, self._steps = path, signature, steps
        self._columns = ["start", *(["inputs"] if signature.takes_inputs else [])]
        self._check_columns()
        sizes = [
            self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)
        ]
        self._ends = np.cumsum(sizes)
        self.rows = int(self._file.metadata.num_rows)
        if not self.rows:
            raise ValueError(f"{path} holds no rows")
        self._position = 0
        self._left: list[Row | BadRow] = []
        self._batches = self._decode(0)

    def read(self, first: int, stop: int) -> Sequence[Row | BadRow]:
        """Read the rows ``first`` to ``stop``."""
        if first < self._position or self._group(first) > self._group(self._position):
            self._seek(first)
        skip, wanted = first - self._position, stop - self._position
        while len(self._left) < wanted:
            if skip >= len(self._left):  # nothing that was decoded so far is wanted
                skip, wanted = skip - len(self._left), wanted - len(self._left)
                self._left = []
            self._left += next(self._batches)
        rows, self._left = self._left[skip:wanted], self._left[wanted:]
        self._position = stop
        return rows

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _group(self, row: int) -> int:
        return int(np.searchsorted(self._ends, row, side="right"))

    def _seek(self, row: int) -> None:
        group = self._group(row)
        self._position = int(self._ends[group - 1]) if group else 0
        self._left = []
        self._batches = self._decode(group)

    def _decode(self, group: int) -> Iterator[Sequence[Row | BadRow]]:
        groups = range(group, self._file.num_row_groups)
        for batch in self._file.iter_batches(
            _DECODE_ROWS, row_groups=groups, columns=self._columns
        ):
            yield self._rows(batch)

    def _rows(self, batch: pa.RecordBatch) -> list[Row | BadRow]:
        shapes = [self._signature.slot_shape or (), self._signature.input_shape or ()]
        columns = [
            _Lists(batch.column(name), shape)
            for name, shape in zip(self._columns, shapes, strict=False)
        ]
        return [self._row(columns, i) for i in range(batch.num_rows)]

    def _row(self, columns: list["_Lists"], i: int) -> Row | BadRow:
        arrays = []
        for name, column in zip(self._columns, columns, strict=True):
            values = column.row(i)
            if isinstance(values, str):
                return BadRow(f"{name} {values}")
            arrays.append(values)
        if not len(arrays[0]):
            return BadRow("start is empty, it needs at least one slot")
        if len(arrays) > 1 and len(arrays[1]) != self._steps:
            return BadRow(
                f"inputs have length {len(arrays[1])}, the rollout has {self._steps} steps"
            )
        fixed = self._signature.fixed.get("k0", len(arrays[0]))
        if len(arrays[0]) != fixed:
            return BadRow(f"start has length {len(arrays[0])}, the model takes {fixed} slots only")
        return check_row(arrays[0], arrays[1] if len(arrays) > 1 else None, self._signature)

    def _check_columns(self) -> None:
        schema = self._file.schema_arrow
        if self._signature.slot_shape is None:
            raise ValueError("a model that does not tell its slot shape cannot read Parquet files")
        for name in self._columns:
            if name not in schema.names:
                raise ValueError(f"{self._path} must have a column {name!r}, it has {schema.names}")
            leaf, depth = schema.field(name).type, 0
            while _is_list(leaf):
                leaf, depth = leaf.value_type, depth + 1
            shape = self._signature.slot_shape if name == "start" else self._signature.input_shape
            numbers = pa.types.is_integer(leaf) or pa.types.is_floating(leaf)
            if not numbers or depth not in (1, 1 + len(shape or ())):
                raise ValueError(
                    f"{self._path}: column {name!r} must be a list of numbers, flat or nested like "
                    f"{('k', *(shape or ()))}, got {schema.field(name).type}"
                )


class _Lists:
    """A list column as one flat array and the rows' offsets into it."""

    def __init__(self, column: pa.Array, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._null = column.is_null().to_numpy(zero_copy_only=False)
        offsets, ragged = np.arange(len(column) + 1), np.zeros(len(column), bool)
        depth = 0
        while _is_list(column.type):
            if pa.types.is_fixed_size_list(column.type):
                column = column.cast(pa.list_(column.type.value_type))
            inner = np.asarray(column.offsets)
            if depth:  # every list inside a row has the length that the slot's shape asks for
                wrong = np.concatenate([[0], np.cumsum(np.diff(inner) != shape[depth - 1])])
                ragged |= wrong[offsets[1:]] > wrong[offsets[:-1]]
            offsets, column, depth = inner[offsets], column.values, depth + 1
        self._offsets, self._ragged = offsets, ragged
        self._values = column.to_numpy(zero_copy_only=False)

    def row(self, i: int) -> Array | str:
        """The row's array, or what is wrong with it."""
        if self._null[i]:
            return "is null"
        values = self._values[self._offsets[i] : self._offsets[i + 1]]
        width = int(np.prod(self._shape))
        if self._ragged[i] or len(values) % width:
            return f"has {len(values)} numbers, which do not form slots of shape {self._shape}"
        return values.reshape(-1, *self._shape)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
