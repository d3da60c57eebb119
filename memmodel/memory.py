"""SlotMemory (placeholder until its own commit)."""


class SlotMemory:
    """Differentiable preallocated memory."""
