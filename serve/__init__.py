"""Run what was trained: a small runner, streaming sessions, batch inference and HTTP.

Names are imported on first use; nothing here imports torch unless a torch artifact is loaded.
"""

from typing import TYPE_CHECKING

from memmodel.lazy import lazy_names

if TYPE_CHECKING:
    from memmodel.serve.batch import BatchReport as BatchReport
    from memmodel.serve.batch import run_batch as run_batch
    from memmodel.serve.runner import Runner as Runner
    from memmodel.serve.session import Session as Session
    from memmodel.serve.session import Snapshot as Snapshot

_HOME = {
    "BatchReport": "memmodel.serve.batch",
    "Runner": "memmodel.serve.runner",
    "Session": "memmodel.serve.session",
    "Snapshot": "memmodel.serve.session",
    "run_batch": "memmodel.serve.batch",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
