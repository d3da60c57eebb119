"""Training a forecaster on time series: what ``memmodel train`` and ``memmodel demo`` run.

The public names are imported on first use: preparing inputs for an exported file
(:class:`Preprocessing`) needs no torch.
"""

from typing import TYPE_CHECKING

from memmodel.lazy import lazy_names

if TYPE_CHECKING:
    from memmodel.train.options import TrainOptions as TrainOptions
    from memmodel.train.preprocessing import Preprocessing as Preprocessing
    from memmodel.train.run import train as train
    from memmodel.train.series import Series as Series
    from memmodel.train.series import load_series as load_series

_HOME = {
    "Preprocessing": "memmodel.train.preprocessing",
    "Series": "memmodel.train.series",
    "TrainOptions": "memmodel.train.options",
    "load_series": "memmodel.train.series",
    "train": "memmodel.train.run",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
