"""AOTInductor packages: native code in a ``.pt2`` file."""

import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from memmodel.export.errors import ExportError
from memmodel.export.metadata import EXTRA_FILE
from memmodel.export.quiet import quiet


def compile_package(program: ExportedProgram, path: Path) -> float:
    """Compile ``program`` into a package at ``path`` and return the seconds it took.

    Raises:
        ExportError: AOTInductor cannot compile it.
    """
    began = time.perf_counter()
    try:
        with quiet():
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except Exception as error:
        raise ExportError(f"AOTInductor cannot compile the network: {error}") from error
    return time.perf_counter() - began


def load_package(path: Path) -> Callable[..., Any]:
    """Load a package. It is native code: whoever loads it trusts it."""
    package: Callable[..., Any] = torch._inductor.aoti_load_package(str(path))
    # Compiled code takes its arguments for contiguous, as the example was, and does not check.
    return lambda *tensors: package(*(tensor.contiguous() for tensor in tensors))


def stamp(path: Path, metadata: str) -> None:
    """Write the metadata into the package, beside what it holds."""
    with zipfile.ZipFile(path) as package:
        entries = [(info, package.read(info)) for info in package.infolist()]
    root = entries[0][0].filename.split("/")[0]
    name = f"{root}/extra/{EXTRA_FILE}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as package:
        for info, content in entries:
            if info.filename != name:
                package.writestr(info, content)
        package.writestr(name, metadata)
