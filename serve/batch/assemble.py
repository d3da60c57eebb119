"""Put finished windows together to the output file, in the format its suffix names."""

import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memmodel.durable import sync
from memmodel.serve.batch.partial import Partial
from memmodel.serve.batch.plan import Plan
from memmodel.serve.batch.window import Window
from memmodel.serve.signature import Array

_SAFETENSORS_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16"}
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever the file is made


@dataclass(frozen=True)
class Results:
    """All windows of a job, read one at a time.

    Attributes:
        plan: the job.
        partial: where the windows are.
    """

    plan: Plan
    partial: Partial

    def windows(self) -> Iterator[Window]:
        """The windows in input order."""
        return map(self.partial.load, range(self.plan.windows))

    @cached_property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape, rows first, and dtype of each dense array."""
        served = next(window for window in self.windows() if window.lengths.any())
        slots = self.plan.k0 + self.plan.steps
        shapes = {
            "memory": ((self.plan.rows, slots, *served.memory.shape[1:]), served.memory.dtype)
        }
        if served.output is not None:
            shapes["output"] = ((self.plan.rows, *served.output.shape[1:]), served.output.dtype)
        return shapes

    def blocks(self, name: str) -> Iterator[Array]:
        """One dense array in pieces, rows first; rows that were not served are NaN."""
        shape, dtype = self.shapes[name]
        for window in self.windows():
            block = np.full((len(window.lengths), *shape[1:]), np.nan, dtype)
            values = window.memory if name == "memory" else window.output
            if window.lengths.any() and values is not None:
                block[window.lengths > 0] = values.reshape(-1, *shape[1:])
            yield block


def assemble(results: Results, target: Path) -> int:
    """Write the output and its errors file; both appear complete or not at all.

    Args:
        results: the finished windows.
        target: the output.

    Returns:
        The number of rows that were not served.
    """
    temporary = results.partial.directory / f"output{target.suffix}"
    with temporary.open("wb") as file:
        _WRITERS[target.suffix](results, file)
        file.flush()
        os.fsync(file.fileno())
    failed = _write_errors(results, errors_path(target))
    os.replace(temporary, target)
    sync(target.parent)
    return failed


def errors_path(target: Path) -> Path:
    """Where the rows that were not served are listed, one JSON object per line."""
    return target.with_name(f"{target.name}.errors.jsonl")


def _write_errors(results: Results, path: Path) -> int:
    count = 0
    temporary = results.partial.directory / "errors.jsonl"
    with temporary.open("w", encoding="utf-8") as file:
        for window in results.windows():
            for row, reason in sorted(window.errors.items()):
                file.write(json.dumps({"row": row, "reason": reason}) + "\n")
                count += 1
        file.flush()
        os.fsync(file.fileno())
    if count:
        os.replace(temporary, path)
    else:
        path.unlink(missing_ok=True)  # of an earlier run
    return count


def _write_npy(results: Results, file: IO[bytes]) -> None:
    # A .npy file holds one array: what the network itself returns.
    _write_array(results, "output" if "output" in results.shapes else "memory", file)


def _write_npz(results: Results, file: IO[bytes]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in results.shapes:
            entry = zipfile.ZipInfo(f"{name}.npy", _ZIP_TIME)
            with archive.open(entry, "w", force_zip64=True) as member:
                _write_array(results, name, member)


def _write_array(results: Results, name: str, file: IO[bytes]) -> None:
    shape, dtype = results.shapes[name]
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
    for block in results.blocks(name):
        file.write(block.data)


def _write_safetensors(results: Results, file: IO[bytes]) -> None:
    header, offset = {}, 0
    for name, (shape, dtype) in results.shapes.items():
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": _SAFETENSORS_DTYPES[dtype.name],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    file.write(len(text).to_bytes(8, "little") + text)
    for name in header:
        for block in results.blocks(name):
            file.write(block.data)


def _write_parquet(results: Results, file: IO[bytes]) -> None:
    writer, row = None, 0
    for window in results.windows():
        table = _table(window, row, results)
        writer = writer or pq.ParquetWriter(file, table.schema)
        writer.write_table(table)
        row += len(window.lengths)
    if writer is not None:
        writer.close()


def _table(window: Window, first: int, results: Results) -> pa.Table:
    columns = {"row": pa.array(np.arange(first, first + len(window.lengths)))}
    shapes = results.shapes
    served = window.lengths > 0
    for name, (shape, dtype) in shapes.items():
        values = window.memory if name == "memory" else window.output
        lengths = window.lengths if name == "memory" else served * shape[1]
        columns[name] = _nested(values, np.asarray(lengths), ~served, shape[2:], dtype)
    return pa.table(columns)


def _nested(
    values: Array | None, lengths: Array, missing: Array, shape: tuple[int, ...], dtype: np.dtype
) -> pa.Array:
    """Rows of lists of slots; null where ``missing``."""
    flat = np.empty(0, dtype) if values is None else values.reshape(-1).astype(dtype, copy=False)
    array = pa.array(flat)
    for size in reversed(shape):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), array, mask=pa.array(missing))


_WRITERS: dict[str, Callable[[Results, IO[bytes]], None]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".parquet": _write_parquet,
}
WRITABLE = tuple(_WRITERS)
