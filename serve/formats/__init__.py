"""One small file per format, all behind :class:`~memmodel.serve.formats.model.Model`."""

from memmodel.serve.formats.load import load_model
from memmodel.serve.formats.model import Model, Stream

__all__ = ["Model", "Stream", "load_model"]
