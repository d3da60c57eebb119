"""Reading named columns of numbers from the files people keep time series in."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Columns = dict[str, npt.NDArray[np.float64]]


def read_columns(path: str | Path, columns: list[str] | None = None) -> Columns:
    """Read each column of ``path`` as float64, missing values as NaN.

    ``.csv`` and ``.parquet`` give their numeric columns; a date or time column is not a series,
    but its rows must be in order. ``.npy`` holds ``(T,)`` or ``(T, columns)``, named "0", "1", ...;
    ``.npz`` one such array per series, of any length each.

    Args:
        path: the file.
        columns: the columns to read; all of them unless given.

    Returns:
        Name to values ``(T,)``, in the order of ``columns`` or of the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: unknown suffix, unreadable content, or a column that is unknown, repeated, not
            numeric or out of order; the message names it.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise ValueError(f"data must be one of {', '.join(_READERS)}, got {path}")
    if not path.is_file():
        raise FileNotFoundError(2, "no such data file", str(path))
    try:
        return _READERS[path.suffix](path, columns)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if "CSV parse error" in str(error):  # a decimal comma splits lines unevenly
            raise ValueError(
                f"{path}: {error}; columns must be separated by commas, decimals by points"
            ) from error
        raise ValueError(f"{path}: {error}") from error


def _read_table(path: Path, columns: list[str] | None) -> Columns:
    import pyarrow as pa

    table = _load_table(path)
    _check_names(table.column_names, columns)
    times = [field.name for field in table.schema if pa.types.is_temporal(field.type)]
    for name in times:
        _check_order(name, table.column(name))
    if columns is None:
        pandas_index = [name for name in table.column_names if name.startswith("__index_level_")]
        columns = [name for name in table.column_names if name not in (*times, *pandas_index)]
    return {name: _numbers(name, table.column(name)) for name in columns}


def _load_table(path: Path) -> Any:
    if path.suffix == ".csv":
        from pyarrow import csv

        dates = csv.ConvertOptions(timestamp_parsers=[csv.ISO8601, "%Y-%m", "%Y/%m/%d"])
        table = csv.read_csv(path, convert_options=dates)
        if all(_is_number(name) for name in table.column_names):
            raise ValueError("the first line must name the columns, but it holds numbers")
        return table
    from pyarrow import parquet

    return parquet.read_table(path)


def _numbers(name: str, column: Any) -> npt.NDArray[np.float64]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_null(kind):
        raise ValueError(f"column {name!r} is empty")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        strange = ((i, x) for i, x in enumerate(column.to_pylist()) if x and not _is_number(x))
        row, text = next(strange, (0, column[0].as_py()))
        raise ValueError(
            f"column {name!r} is not numeric: row {row + 1} holds {text!r}; "
            "name the columns to use with --columns"
        )
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise ValueError(
            f"column {name!r} is not numeric: its type is {kind}; "
            "name the columns to use with --columns"
        )
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def _check_order(name: str, column: Any) -> None:
    times = column.drop_null().to_numpy()
    late = np.flatnonzero(times[1:] <= times[:-1])
    if late.size:
        raise ValueError(
            f"time column {name!r} must increase, but {times[late[0] + 1]} "
            f"follows {times[late[0]]}: sort the rows, and give each series a column of its own"
        )


def _read_npy(path: Path, columns: list[str] | None) -> Columns:
    array = np.load(path, allow_pickle=False)
    if array.ndim not in (1, 2):
        raise ValueError(f"the array must be (T,) or (T, columns), got shape {array.shape}")
    table = {str(i): series for i, series in enumerate(np.atleast_2d(array.T))}
    _check_names(list(table), columns)
    return {name: _as_float(name, table[name]) for name in columns or table}


def _read_npz(path: Path, columns: list[str] | None) -> Columns:
    table: dict[str, npt.NDArray[Any]] = {}
    # NumPy does not close a file that it opened itself and found damaged.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        for key, array in archive.items():
            if array.ndim == 1:
                table[key] = array
            elif array.ndim == 2:
                table.update({f"{key}.{i}": series for i, series in enumerate(array.T)})
            else:
                raise ValueError(
                    f"array {key!r} must be (T,) or (T, columns), got shape {array.shape}"
                )
    _check_names(list(table), columns)
    return {name: _as_float(name, table[name]) for name in columns or table}


def _as_float(name: str, array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
        raise ValueError(f"column {name!r} is not numeric: its type is {array.dtype}")
    return array.astype(np.float64)


def _check_names(names: list[str], columns: list[str] | None) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"column names must differ, but these repeat: {', '.join(repeated)}")
    unknown = [name for name in columns or [] if name not in names]
    if unknown:
        raise ValueError(f"no column {', '.join(map(repr, unknown))}; there are {_list(names)}")


def _list(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_READERS: dict[str, Callable[[Path, list[str] | None], Columns]] = {
    ".csv": _read_table,
    ".parquet": _read_table,
    ".npy": _read_npy,
    ".npz": _read_npz,
}
