"""Registered ops: slot writes, and reads of a memory that is not filled to its end."""

from memmodel.ops.masked import masked_read, newest_slot
from memmodel.ops.registration import slot_write, slot_write_

__all__ = ["masked_read", "newest_slot", "slot_write", "slot_write_"]
