"""Silence what PyTorch's exporters say about their own internals."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Loggers and what they say that no user can act on.
_LOGGERS = (
    "torch.onnx._internal.exporter._registration",  # "torchvision is not installed"
    "torch._export.serde.serialize",  # "Symbol u1 did not appear": the loop's own counter
)


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block, ignore known messages; all others pass."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`isinstance\\(treespec, LeafSpec\\)`", FutureWarning)
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            # nn.RNNBase keeps a list of its weights, which torch.export says it ignores.
            warnings.filterwarnings("ignore", "The tensor attributes? ", UserWarning)
            # Inductor imports torch.utils.mkldnn, which still uses torch.jit.
            warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
