"""Networks that write their own memory, trained in memory linear in the number of steps.

The public names are imported on first use, so that ``import memmodel.serve`` does not import torch.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from memmodel.lazy import lazy_names

if TYPE_CHECKING:
    from memmodel._rollout import rollout as rollout
    from memmodel.cells import AttentionCell as AttentionCell
    from memmodel.cells import RecurrentCell as RecurrentCell
    from memmodel.memory import SlotMemory as SlotMemory
    from memmodel.network import MemoryNetwork as MemoryNetwork
    from memmodel.ops import masked_read as masked_read
    from memmodel.ops import newest_slot as newest_slot
    from memmodel.ops import slot_write as slot_write
    from memmodel.ops import slot_write_ as slot_write_
    from memmodel.spec import CellSpec as CellSpec
    from memmodel.spec import SlotSpec as SlotSpec

__version__ = version("memmodel")

_HOME = {
    "AttentionCell": "memmodel.cells",
    "CellSpec": "memmodel.spec",
    "MemoryNetwork": "memmodel.network",
    "RecurrentCell": "memmodel.cells",
    "SlotMemory": "memmodel.memory",
    "SlotSpec": "memmodel.spec",
    "export": "memmodel.export",
    "masked_read": "memmodel.ops",
    "newest_slot": "memmodel.ops",
    "rollout": "memmodel._rollout",
    "serve": "memmodel.serve",
    "slot_write": "memmodel.ops",
    "slot_write_": "memmodel.ops",
}

__all__ = [*sorted(_HOME), "__version__"]

__getattr__, __dir__ = lazy_names(__name__, _HOME)

if "torch" in sys.modules:
    # Whoever uses torch expects `torch.ops.memmodel` to exist once memmodel is imported.
    import_module("memmodel.ops")
