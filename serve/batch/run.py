"""Serve a file or a directory of files."""

import json
import os
import shutil
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from memmodel.serve.batch.assemble import WRITABLE, Results, assemble, errors_path
from memmodel.serve.batch.engines import ENGINES
from memmodel.serve.batch.job import Job
from memmodel.serve.batch.partial import Partial, write_atomically
from memmodel.serve.batch.plan import Plan, make_plan
from memmodel.serve.batch.reading import READABLE, open_reader
from memmodel.serve.runner import Runner


@dataclass(frozen=True)
class BatchReport:
    """What a batch job did.

    Attributes:
        output: the file or directory that was written.
        rows: rows of the input.
        failed: rows that were not served.
        errors: files that say why: a JSON object per line, with ``row`` (from 0) and ``reason``.
    """

    output: Path
    rows: int
    failed: int
    errors: tuple[Path, ...]


@dataclass(frozen=True)
class _Options:
    steps: int
    batch: int | None
    strict: bool
    engine: str
    restart: bool
    progress: bool


def run_batch(
    model: Runner | str | Path,
    source: str | Path,
    output: str | Path,
    *,
    steps: int,
    batch: int | None = None,
    strict: bool = False,
    engine: str = "local",
    force: bool = False,
    restart: bool = False,
    progress: bool = False,
) -> BatchReport:
    """Roll out every row of a file, or of every file in a directory.

    Files may be larger than memory. Work is stored in windows beside the output as it is done, in
    ``.NAME.partial``: after a kill, a full disk or Ctrl-C the same call goes on from there, and the
    output is bit-identical to that of an unbroken run. It needs disk space for twice the output.

    Args:
        model: a loaded model, or what :meth:`Runner.load` takes.
        source: ``.npy`` (start), or ``.npz``, ``.safetensors`` or ``.parquet`` with ``start`` and
            ``inputs``; or a directory of such files.
        output: the file to write, in the format of its suffix: the network's result as ``.npy``,
            or ``memory`` and ``output`` as ``.npz``, ``.safetensors`` or ``.parquet``, rows in
            input order. For a directory: a directory of files of the same names.
        steps: number of slots to write per row, ≥ 0.
        batch: rows per call of the model; None: as many as comfortably fit the free memory.
        strict: end the job at the first row that cannot be served. Otherwise such rows are listed
            in ``NAME.errors.jsonl``, and the output holds NaN (Parquet: null) for them.
        engine: "local" (this process) or "ray" (a Ray cluster, extra ``ray``).
        force: replace an output that exists.
        restart: forget stored work of an earlier call instead of going on with it.
        progress: show a progress bar.

    Raises:
        FileNotFoundError: there is no such input or model.
        FileExistsError: the output exists and ``force`` is False.
        ValueError: an argument breaks a rule, the output is or holds the input or is a directory
            with other files than a job's, the input does not fit the model, stored work is of
            another call, no row can be served, or ``strict`` met a bad row.
        RuntimeError: another process is writing the same output.
        OSError: the disk is full or fails.
    """
    source, output = Path(source), Path(output)
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {sorted(ENGINES)}, got {engine!r}")
    if not source.exists():
        raise FileNotFoundError(f"input {source} does not exist")
    if output.exists() and not force and not _staging(output).exists():
        raise FileExistsError(f"output {output} exists: pass force=True (--force) to replace it")
    _check_apart(source, output)
    runner = model if isinstance(model, Runner) else Runner.load(model)
    options = _Options(steps, batch, strict, engine, restart, progress)
    serve = _serve_directory if source.is_dir() else _serve_file
    return serve(runner, source, output, options)


def _check_apart(source: Path, output: Path) -> None:
    """Refuse an output whose writing would delete the input, or what no job has written."""
    here, there = source.resolve(), output.resolve()
    if here == there or there in here.parents:
        raise ValueError(f"output {output} and input {source} must lie apart")
    if not output.exists():
        return
    if output.is_dir() != source.is_dir():
        kind = "directory" if source.is_dir() else "file"
        raise ValueError(f"output {output} must be a {kind} like the input {source}")
    if output.is_dir() and (others := sorted(set(_names(output)) - set(_written(output)))):
        raise ValueError(
            f"output {output} holds {others[0]!r}, which no batch job has written: it is replaced "
            f"as a whole, so choose another directory"
        )


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def _written(directory: Path) -> list[str]:
    """Files in ``directory`` that a batch job may have written."""
    suffixes = (*WRITABLE, ".errors.jsonl")
    return [p.name for p in directory.iterdir() if p.is_file() and p.name.endswith(suffixes)]


def _serve_file(runner: Runner, source: Path, output: Path, options: _Options) -> BatchReport:
    return _serve_planned(runner, source, output, options)[0]


def _serve_planned(
    runner: Runner, source: Path, output: Path, options: _Options
) -> tuple[BatchReport, Plan]:
    if output.suffix not in WRITABLE:
        raise ValueError(f"output {output} must end in one of {', '.join(WRITABLE)}")
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Partial(output)
    with closing(partial):
        stored = None if options.restart else partial.stored_plan()
        try:
            plan = _plan(runner, source, output, options, stored)
        except ValueError:
            if stored is None:
                partial.remove()  # nothing was begun
            raise
        if stored is None:
            partial.begin(plan)
        job = Job(source, plan, partial.directory, options.strict)
        _finish_windows(runner, job, partial, options)
        failed = assemble(Results(plan, partial), output)
        partial.remove()
    errors = (errors_path(output),) if failed else ()
    return BatchReport(output, plan.rows, failed, errors), plan


def _plan(
    runner: Runner, source: Path, output: Path, options: _Options, stored: dict[str, Any] | None
) -> Plan:
    """Make the plan, and check that stored work belongs to it."""
    batch = options.batch if options.batch or not stored else int(stored["batch"])
    with closing(open_reader(source, runner.signature, options.steps)) as reader:
        plan = make_plan(runner, source, reader, output.suffix, options.steps, batch)
    if stored is not None and (differences := plan.differences(stored)):
        raise ValueError(
            f"{_staging(output)} holds work of another call ({', '.join(differences)}): "
            f"repeat that one, or pass restart=True (--restart) to forget it"
        )
    return plan


def _finish_windows(runner: Runner, job: Job, partial: Partial, options: _Options) -> None:
    plan, done = job.plan, set(partial.done(job.plan))
    todo = [index for index in range(plan.windows) if index not in done]
    rows = {
        index: stop - first for index in range(plan.windows) for first, stop in [plan.bounds(index)]
    }
    finished = sum(rows[index] for index in done)
    bar = tqdm(
        total=plan.rows,
        initial=finished,
        desc=job.source.name,
        unit="row",
        disable=not options.progress,
    )
    try:
        with bar:
            for index in ENGINES[options.engine](runner, job, todo):
                finished += rows[index]
                bar.update(rows[index])
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}; {finished} of {plan.rows} rows are kept, the same call goes on",
            str(partial.directory),
        ) from error


def _serve_directory(runner: Runner, source: Path, output: Path, options: _Options) -> BatchReport:
    """Serve the files one by one into a directory that gets its name when all are done."""
    files = sorted(path for path in source.iterdir() if path.suffix in READABLE)
    if not files:
        raise ValueError(f"input {source} holds no file that ends in {', '.join(READABLE)}")
    staging = _staging(output)
    staging.mkdir(parents=True, exist_ok=True)
    _check_staged(staging, {path.name for path in files}, options)
    reports = [_serve_once(runner, path, staging / path.name, options) for path in files]
    for record in staging.glob(".*.done"):
        record.unlink()
    if output.exists():
        shutil.rmtree(output)
    os.replace(staging, output)
    errors = tuple(output / path.name for report in reports for path in report.errors)
    rows, failed = (sum(getattr(r, name) for r in reports) for name in ("rows", "failed"))
    return BatchReport(output, rows, failed, errors)


def _check_staged(staging: Path, sources: set[str], options: _Options) -> None:
    """Refuse or, on a restart, forget what an earlier call stored for files that have gone."""
    forms = ("{}", "{}.errors.jsonl", ".{}.done", ".{}.done.tmp", ".{}.partial")
    known = {form.format(name) for name in sources for form in forms}
    strange = sorted(path for path in staging.iterdir() if path.name not in known)
    if strange and not options.restart:
        raise ValueError(
            f"{staging} holds work of another call ({strange[0].name}, which the input no longer "
            f"has): repeat that one, or pass restart=True (--restart) to forget it"
        )
    for path in strange:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _serve_once(runner: Runner, source: Path, output: Path, options: _Options) -> BatchReport:
    """Serve one file of a directory, unless an earlier call has finished it."""
    record = output.with_name(f".{output.name}.done")
    if record.exists() and not options.restart:
        stored = json.loads(record.read_text(encoding="utf-8"))
        plan = _plan(runner, source, output, options, stored["plan"])
        errors = (errors_path(output),) if stored["failed"] else ()
        return BatchReport(output, plan.rows, stored["failed"], errors)
    report, plan = _serve_planned(runner, source, output, options)
    content = json.dumps({"plan": asdict(plan), "failed": report.failed})
    write_atomically(record, lambda file: file.write(content.encode()))
    return report


def _staging(output: Path) -> Path:
    return output.with_name(f".{output.name}.partial")
