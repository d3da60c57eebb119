"""Write a trained network as a file that runs without memmodel.

Names are imported on first use, so that reading an artifact's metadata does not import torch.
"""

from typing import TYPE_CHECKING

from memmodel.lazy import lazy_names

if TYPE_CHECKING:
    from memmodel.export.errors import AliasError as AliasError
    from memmodel.export.errors import ExportError as ExportError
    from memmodel.export.errors import ParityError as ParityError
    from memmodel.export.metadata import ArtifactError as ArtifactError
    from memmodel.export.metadata import Metadata as Metadata
    from memmodel.export.onnx_format import to_onnx as to_onnx
    from memmodel.export.pt2_format import to_pt2 as to_pt2
    from memmodel.export.reading import read_metadata as read_metadata
    from memmodel.export.report import ExportReport as ExportReport
    from memmodel.export.torchscript_format import to_torchscript as to_torchscript

_HOME = {
    "AliasError": "memmodel.export.errors",
    "ArtifactError": "memmodel.export.metadata",
    "ExportError": "memmodel.export.errors",
    "ExportReport": "memmodel.export.report",
    "Metadata": "memmodel.export.metadata",
    "ParityError": "memmodel.export.errors",
    "read_metadata": "memmodel.export.reading",
    "to_onnx": "memmodel.export.onnx_format",
    "to_pt2": "memmodel.export.pt2_format",
    "to_torchscript": "memmodel.export.torchscript_format",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
