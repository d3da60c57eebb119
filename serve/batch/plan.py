"""What a batch job is, written down so that a second run of the same command can go on with it."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memmodel.serve.batch.rows import BadRow, Reader, Row
from memmodel.serve.runner import Runner

_MAX_BATCH = 1024
_MAX_BATCH_BYTES = 256 << 20
_WINDOW_BYTES = 64 << 20
_WINDOW_BATCHES = 8


@dataclass(frozen=True)
class Plan:
    """A job's identity and its partition into windows and batches.

    Equal plans give bit-identical results, since each batch of the model is the same in both.

    Attributes:
        model: digest of the model's files.
        device: where it runs.
        input_bytes: size of the input file.
        input_mtime_ns: when it was last changed.
        rows: its rows.
        k0: length of the first good start; dense outputs take rows of this length only.
        steps: steps of each rollout.
        suffix: suffix of the output.
        batch: rows per call of the model.
        window: rows that are read, served and stored together.
    """

    model: str
    device: str
    input_bytes: int
    input_mtime_ns: int
    rows: int
    k0: int
    steps: int
    suffix: str
    batch: int
    window: int

    @property
    def windows(self) -> int:
        """Number of windows."""
        return -(-self.rows // self.window)

    def bounds(self, window: int) -> tuple[int, int]:
        """First row of a window, and the row after its last."""
        return window * self.window, min((window + 1) * self.window, self.rows)

    def to_json(self) -> str:
        """The plan as a JSON document."""
        return json.dumps(asdict(self), indent=2)

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Fields in which a stored plan differs, in words."""
        mine = asdict(self)
        return [
            f"{k} was {other.get(k)!r}, now {v!r}" for k, v in mine.items() if other.get(k) != v
        ]


def make_plan(
    runner: Runner, source: Path, reader: Reader, suffix: str, steps: int, batch: int | None
) -> Plan:
    """Decide how the rows are partitioned.

    Args:
        runner: the model.
        source: the input file.
        reader: its rows.
        suffix: suffix of the output.
        steps: steps of each rollout.
        batch: rows per call; None: as many as comfortably fit the free memory.

    Raises:
        ValueError: no row can be served.
    """
    status = source.stat()
    first = _first_good(reader)
    per_row = _row_bytes(first.start, steps)
    rows = batch or max(1, min(_MAX_BATCH, _batch_bytes() // per_row))
    rows = min(rows, reader.rows)
    batches = max(1, min(_WINDOW_BATCHES, _WINDOW_BYTES // (rows * per_row)))
    return Plan(
        model=digest(runner.path),
        device=runner.device,
        input_bytes=status.st_size,
        input_mtime_ns=status.st_mtime_ns,
        rows=reader.rows,
        k0=len(first.start),
        steps=steps,
        suffix=suffix,
        batch=rows,
        window=rows * batches,
    )


def digest(path: Path) -> str:
    """A digest of a model's file, or of the files of a run directory."""
    total = hashlib.sha256()
    files = [path] if path.is_file() else sorted(path.glob("*.*"))
    for file in files:
        with file.open("rb") as content:
            total.update(hashlib.file_digest(content, "sha256").digest())
    return total.hexdigest()


def _first_good(reader: Reader) -> Row:
    reason = ""
    for first in range(0, reader.rows, _MAX_BATCH):
        for row in reader.read(first, min(first + _MAX_BATCH, reader.rows)):
            if not isinstance(row, BadRow):
                return row
            reason = reason or row.reason
    raise ValueError(f"no row can be served; the first one because {reason}")


def _row_bytes(start: np.ndarray, steps: int) -> int:
    """Memory a row takes: its own, a copy while it grows, and the results."""
    return 4 * max(1, start[0].nbytes) * (len(start) + steps)


def _batch_bytes() -> int:
    return min(_MAX_BATCH_BYTES, _available_bytes() // 8)


def _available_bytes() -> int:
    """Memory that can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) << 10
