"""Put a finished file in its place, or leave what was there."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memmodel.durable import sync


def check_target(path: str | Path, suffix: str, *, force: bool) -> Path:
    """Check where a file is to be written, before any work is done.

    Args:
        path: the wanted path.
        suffix: what it must end with.
        force: an existing file may be replaced.

    Raises:
        ValueError: the suffix is another one.
        FileNotFoundError: the directory does not exist.
        FileExistsError: the file exists and ``force`` is False, or it is a directory.
    """
    path = Path(path)
    if path.suffix != suffix:
        raise ValueError(f"path must end with {suffix}, got {path}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"directory {path.parent} does not exist")
    if path.is_dir():
        raise FileExistsError(f"{path} is a directory")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: pass force=True (--force) to replace it")
    return path


@contextmanager
def replacing(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place if the block succeeds.

    Args:
        path: the final path.
        force: an existing file may be replaced.

    Raises:
        FileExistsError: the file appeared meanwhile and ``force`` is False.
    """
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        sync(temporary)
        if force:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, fails where path exists
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
