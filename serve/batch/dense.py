"""Files of dense arrays, read by seeking.

Memory maps would do as well, but their pages count as this process's memory, so that watching for
a leak or setting a limit would be in vain.
"""

import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from memmodel.serve.batch.rows import BadRow, Row, check_row
from memmodel.serve.signature import Array, Signature

_SAFETENSORS_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
}
_CHUNK = 1 << 20


class Region:
    """An array that lies C-ordered in a file or in a member of an archive.

    Args:
        file: the open file.
        offset: where the array begins.
        shape: its shape, rows first.
        dtype: its dtype.
    """

    def __init__(self, file: IO[bytes], offset: int, shape: tuple[int, ...], dtype: np.dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._file, self._offset = file, offset
        self._row_bytes = self.dtype.itemsize * math.prod(shape[1:])

    def read(self, first: int, stop: int) -> Array:
        """Read the rows ``first`` to ``stop``.

        Raises:
            ValueError: the file ends before them.
        """
        self._file.seek(self._offset + first * self._row_bytes)
        buffer = bytearray((stop - first) * self._row_bytes)
        view, done = memoryview(buffer), 0
        while done < len(buffer):  # members of archives hand out less than was asked for
            count = self._file.readinto(view[done : done + _CHUNK])  # type: ignore[attr-defined]
            if not count:
                raise ValueError(f"{self._file.name} is truncated within row {first} to {stop}")
            done += count
        return np.frombuffer(buffer, self.dtype).reshape(stop - first, *self.shape[1:])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass
class DenseReader:
    """Rows of dense ``start`` and ``inputs``.

    Args:
        path: the file, for messages.
        arrays: its arrays by name.
        signature: what the model takes.
        steps: steps of the rollouts.

    Raises:
        ValueError: the arrays do not fit the model or each other.
    """

    path: Path
    arrays: dict[str, Region]
    signature: Signature
    steps: int

    def __post_init__(self) -> None:
        if "start" not in self.arrays:
            raise ValueError(f"{self.path} must hold an array 'start', it has {[*self.arrays]}")
        shape = self.arrays["start"].shape
        self.rows = shape[0]
        if self.rows == 0:
            raise ValueError(f"{self.path} holds no rows: start has shape {shape}")
        try:
            # One row of zeros stands for all of them.
            self.signature.check_start(
                np.zeros((1, *shape[1:]), self.arrays["start"].dtype), self.steps
            )
            inputs = self.arrays.get("inputs")
            if inputs is not None and inputs.shape[0] != self.rows:
                raise ValueError(f"inputs must have {self.rows} rows, got shape {inputs.shape}")
            zeros = None if inputs is None else np.zeros((1, *inputs.shape[1:]), inputs.dtype)
            self.signature.check_inputs(zeros, 1, self.steps)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: {error}") from error

    def read(self, first: int, stop: int) -> Sequence[Row | BadRow]:
        """Read the rows ``first`` to ``stop``."""
        start = self.arrays["start"].read(first, stop)
        if "inputs" not in self.arrays:
            return [check_row(row, None, self.signature) for row in start]
        inputs = self.arrays["inputs"].read(first, stop)
        return [check_row(*row, self.signature) for row in zip(start, inputs, strict=True)]

    def close(self) -> None:
        """Close the file."""
        for region in self.arrays.values():
            region.close()


def open_npy(path: Path) -> dict[str, Region]:
    """The array of a ``.npy`` file as ``start``."""
    return {"start": _npy(path.open("rb"), path)}


def open_npz(path: Path) -> dict[str, Region]:
    """The arrays ``start`` and ``inputs`` of an ``.npz`` file."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is no .npz file, or it is damaged: {error}") from error
    names = {Path(name).stem: name for name in archive.namelist()}
    chosen = [name for name in ("start", "inputs") if name in names]
    if not chosen:
        raise ValueError(f"{path} must hold an array 'start', it has {sorted(names)}")
    return {name: _npy(archive.open(names[name]), path) for name in chosen}


def open_safetensors(path: Path) -> dict[str, Region]:
    """The tensors ``start`` and ``inputs`` of a ``.safetensors`` file."""
    with path.open("rb") as file:
        try:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(size))
            entries = {name: header[name] for name in ("start", "inputs") if name in header}
            dtypes = {
                name: np.dtype(_SAFETENSORS_DTYPES[entry["dtype"]])
                for name, entry in entries.items()
            }
            places = {name: _place(entry, dtypes[name]) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no .safetensors file of numbers: {error!r}") from error
    return {
        name: Region(
            path.open("rb"),
            8 + size + offset,
            shape,
            dtypes[name],
        )
        for name, (offset, shape) in places.items()
    }


def _place(entry: dict[str, Any], dtype: np.dtype) -> tuple[int, tuple[int, ...]]:
    """Where a tensor of a ``.safetensors`` file begins, and its shape."""
    (first, stop), shape = entry["data_offsets"], tuple(entry["shape"])
    if not shape or stop - first != dtype.itemsize * math.prod(shape):
        raise ValueError(f"its bytes {first} to {stop} are no rows of shape {shape}")
    return first, shape


def _npy(file: IO[bytes], path: Path) -> Region:
    try:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read_header(file)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no .npy file, or it is damaged: {error}") from error
    if fortran and len(shape) > 1:
        raise ValueError(
            f"{path} is in Fortran order, which cannot be read a row at a time: save "
            f"np.ascontiguousarray(array)"
        )
    if not shape:
        raise ValueError(f"{path} holds a single number, not rows")
    return Region(file, file.tell(), shape, dtype)
