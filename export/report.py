"""What an export did."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from memmodel.export.metadata import Metadata


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    Attributes:
        path: the artifact.
        files: size of each file written, in bytes, by name.
        seconds: time of the whole export, the self-check included.
        metadata: what the artifact says about itself, with the errors of the self-check.
        compile_seconds: time AOTInductor took; None for other formats.
    """

    path: Path
    files: Mapping[str, int]
    seconds: float
    metadata: Metadata
    compile_seconds: float | None = None

    def to_json(self) -> str:
        """The report as a JSON document."""
        document = {**asdict(self), "path": str(self.path)}
        return json.dumps(document, indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        meta, parity = self.metadata, self.metadata.parity
        kind = f"{meta.format} {meta.form} form"
        if meta.state is not None:
            kind += f" ({meta.state})"
        if meta.opset is not None:
            kind += f", opset {meta.opset}"
        lines = [f"{self.path}: {kind}, {sum(self.files.values()):,} bytes in {self.seconds:.1f} s"]
        if self.compile_seconds is not None:
            lines.append(f"compiled in {self.compile_seconds:.1f} s for {meta.device}")
        if meta.fixed:
            fixed = ", ".join(f"{name} = {size}" for name, size in meta.fixed.items())
            lines.append(f"fixed at export: {fixed}")
        if parity is not None:
            lines.append(
                f"largest difference from eager: {parity.max_abs_error:.2g} "
                f"({parity.max_rel_error:.2g} relative, allowed {parity.tolerance:.0e})"
            )
        return "\n".join(lines)


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, memmodel and ``packages``."""
    found = {name: version(name) for name in ("memmodel", *packages)}
    return {"python": platform.python_version(), **found}
