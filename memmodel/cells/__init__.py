"""Cells with a rollout of their own, faster than the generic one and with the same numbers."""

from memmodel.cells.attention import AttentionCell
from memmodel.cells.recurrent import RecurrentCell

__all__ = ["AttentionCell", "RecurrentCell"]
