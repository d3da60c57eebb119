"""Batch inference over files larger than memory, resumable at any moment."""

from memmodel.serve.batch.run import BatchReport, run_batch

__all__ = ["BatchReport", "run_batch"]
