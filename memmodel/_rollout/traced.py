"""The rollout while ``torch.compile`` is tracing it."""

import torch
from torch import Tensor, nn

from memmodel._rollout.capture import Cell
from memmodel._rollout.eager import rollout_eager
from memmodel._rollout.fast import has_fast_path
from memmodel._rollout.op import rollout_op


def rollout_traced(cell: Cell, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
    """Memory of ``start`` and ``steps`` slots of ``cell``, from one op where it is a module."""
    allowed = _allow_rnn(True)
    if has_fast_path(cell):
        memory = cell.fast_rollout(start, steps, inputs)
    elif isinstance(cell, nn.Module):
        memory = rollout_op(cell, start, steps, inputs)
    else:
        memory = rollout_eager(cell, start, steps, inputs)
    _allow_rnn(allowed)
    return memory


@torch.compiler.assume_constant_result
def _allow_rnn(allow: bool) -> bool:
    """Let the compiler look at RNN modules, of which it refuses even to read the parameters.

    It calls this while tracing, so that the setting holds for what is traced in between.
    """
    before: bool = torch._dynamo.config.allow_rnn
    torch._dynamo.config.allow_rnn = allow
    return before
