"""Open an input file by its suffix."""

from collections.abc import Callable
from pathlib import Path

from memmodel.serve.batch.dense import DenseReader, open_npy, open_npz, open_safetensors
from memmodel.serve.batch.rows import Reader
from memmodel.serve.signature import Signature

READABLE = (".npy", ".npz", ".safetensors", ".parquet")


def open_reader(path: Path, signature: Signature, steps: int) -> Reader:
    """Open rows of ``start`` and ``inputs``.

    Args:
        path: ``.npy`` (start), or ``.npz``, ``.safetensors`` or ``.parquet`` with ``start`` and,
            where the model takes them, ``inputs``.
        signature: what the model takes.
        steps: steps of the rollouts, which ``inputs`` have to cover.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the suffix is none of the above, the file is damaged, or it does not hold what
            the model takes.
    """
    if not path.exists():
        raise FileNotFoundError(f"input {path} does not exist")
    if path.suffix == ".parquet":
        from memmodel.serve.batch.parquet import ParquetReader

        return ParquetReader(path, signature, steps)
    openers: dict[str, Callable[[Path], dict]] = {
        ".npy": open_npy,
        ".npz": open_npz,
        ".safetensors": open_safetensors,
    }
    if path.suffix not in openers:
        raise ValueError(f"input {path} must end in one of {', '.join(READABLE)}")
    return DenseReader(path, openers[path.suffix](path), signature, steps)
