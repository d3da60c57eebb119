"""Registered slot-write ops: ``torch.ops.memmodel.slot_write`` and ``slot_write_``."""

from memmodel.ops.registration import slot_write, slot_write_

__all__ = ["slot_write", "slot_write_"]
