"""SlotMemory: differentiable preallocated memory for loops that users write by hand."""

from memmodel.memory.slot_memory import SlotMemory

__all__ = ["SlotMemory"]
