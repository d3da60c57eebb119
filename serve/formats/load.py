"""Choose the class that runs an artifact."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from memmodel.export.metadata import Metadata
from memmodel.export.reading import read_metadata
from memmodel.serve.formats.model import Model

# (format, form) -> module and class; imported on use, so that ONNX files run without torch.
_CLASSES = {
    ("onnx", "rollout"): ("onnx_rollout", "OnnxRollout"),
    ("onnx", "step"): ("onnx_step", "OnnxStep"),
    ("torchscript", "rollout"): ("torch_file", "TorchRollout"),
    ("torchscript", "step"): ("torch_file", "TorchStep"),
    ("pt2", "rollout"): ("torch_file", "TorchRollout"),
    ("pt2", "step"): ("torch_file", "TorchStep"),
    ("aoti", "rollout"): ("torch_file", "TorchRollout"),
    ("aoti", "step"): ("torch_file", "TorchStep"),
}


def load_model(
    path: str | Path, device: str, threads: int | None, classes: Sequence[type] = ()
) -> Model:
    """Load an artifact or a saved run directory.

    Args:
        path: an exported file, or a directory that ``MemoryNetwork.save`` wrote.
        device: "auto", "cpu", "cuda" or "cuda:N".
        threads: CPU threads for one call; None leaves the choice to the runtime.
        classes: classes of the user's own that a saved run is made of.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
        ValueError: ``path`` is not a model that memmodel wrote, or it is damaged.
        RuntimeError: the device asked for cannot be used.
    """
    path = Path(path)
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if path.is_dir():
        run = import_module("memmodel.serve.formats.run_directory")
        model: Model = run.RunDirectory(path, device, threads, classes)
        return model
    metadata = read_metadata(path)
    module, name = _CLASSES[metadata.format, metadata.form]
    make: Callable[[Path, Metadata, str, int | None], Model] = getattr(
        import_module(f"memmodel.serve.formats.{module}"), name
    )
    return make(path, metadata, device, threads)
