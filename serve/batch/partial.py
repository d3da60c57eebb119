"""The work done so far, on disk beside the output."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from memmodel.durable import sync
from memmodel.serve.batch.plan import Plan
from memmodel.serve.batch.window import Window

_PLAN = "plan.json"


class Partial:
    """A directory ``.NAME.partial`` that holds the plan and every finished window.

    A window's file appears by a rename after its content has reached the disk, so that whatever is
    there is complete: the files are the journal.

    Args:
        target: the output they will become.

    Raises:
        RuntimeError: another process is at work on the same output.
    """

    def __init__(self, target: Path) -> None:
        self.directory = target.with_name(f".{target.name}.partial")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = (self.directory / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise RuntimeError(f"another process is writing {target}") from error

    def stored_plan(self) -> dict[str, Any] | None:
        """The plan of the work that is there, if there is any."""
        path = self.directory / _PLAN
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def begin(self, plan: Plan) -> None:
        """Forget what is there and store a plan."""
        for path in self.directory.glob("*.npz*"):
            path.unlink()
        write_atomically(self.directory / _PLAN, lambda file: file.write(plan.to_json().encode()))

    def done(self, plan: Plan) -> list[int]:
        """The windows that are finished, in order."""
        return [i for i in range(plan.windows) if _path(self.directory, i).exists()]

    @staticmethod
    def save(directory: Path, index: int, window: Window) -> None:
        """Store a window in the directory of a job, from any process."""
        arrays = {"lengths": window.lengths, "memory": window.memory}
        if window.output is not None:
            arrays["output"] = window.output
        errors = json.dumps(window.errors).encode()
        arrays["errors"] = np.frombuffer(errors, np.uint8)
        write_atomically(_path(directory, index), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]

    def load(self, index: int) -> Window:
        """Read a window back."""
        with np.load(_path(self.directory, index), allow_pickle=False) as stored:
            errors = json.loads(stored["errors"].tobytes())
            return Window(
                lengths=stored["lengths"],
                memory=stored["memory"],
                output=stored.get("output"),
                errors={int(row): reason for row, reason in errors.items()},
            )

    def remove(self) -> None:
        """Delete the directory: its content has become the output."""
        shutil.rmtree(self.directory)
        self.close()

    def close(self) -> None:
        """Let go of the lock."""
        self._lock.close()


def _path(directory: Path, index: int) -> Path:
    return directory / f"{index:08d}.npz"


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file that appears complete or not at all, also when the power goes."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)
