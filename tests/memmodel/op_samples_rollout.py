"""Sample arguments of the generic rollout's ops."""

from collections.abc import Iterator

import torch
from op_samples import Sample, random, register
from torch import Tensor, nn

from memmodel._rollout.registry import handle_of


class Mixer(nn.Module):
    """A cell of elementwise operations, for any dtype and slot shape."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((2,), 0.5, device=device, dtype=dtype))

    def forward(self, prefix: Tensor, inputs: Tensor | None = None) -> Tensor:
        slot = (prefix * prefix).sum(1) * self.gain
        return slot if inputs is None else slot * inputs


_CELLS: dict[tuple[torch.device, torch.dtype], Mixer] = {}  # handles hold cells weakly


def _cell(device: torch.device, dtype: torch.dtype) -> Mixer:
    return _CELLS.setdefault((device, dtype), Mixer(device, dtype))


@register("memmodel::rollout")
def _rollout(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    cell = _cell(device, dtype)
    start = random(3, 2, 2, device=device, dtype=dtype)
    inputs = random(3, 2, 2, device=device, dtype=dtype)
    cell_arguments = ([cell.gain.detach()], handle_of(cell), None)
    yield Sample("plain", (start, None, *cell_arguments, 3, 0), (0,), twice=False)
    yield Sample("inputs", (start, inputs, *cell_arguments, 2, 0), (0, 1), twice=False)
    yield Sample("no step", (start, None, *cell_arguments, 0, 0), (0,), twice=False)


@register("memmodel::rollout_backward")
def _rollout_backward(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    cell = _cell(device, dtype)
    # Without a step: the schema check runs the op in a mode in which torch.func.vjp does not work.
    # What steps give is checked through the forward op's gradients and in compiled models.
    grad = random(3, 2, 2, device=device, dtype=dtype)
    memory = random(3, 2, 2, device=device, dtype=dtype)
    inputs = random(3, 0, 2, device=device, dtype=dtype)
    tape = torch.empty(0, dtype=torch.uint8)
    cell_arguments = ([cell.gain.detach()], handle_of(cell), None, 2)
    for name, needed in (("all", [True, True, True]), ("none", [False, False, False])):
        yield Sample(name, (grad, memory, tape, inputs, *cell_arguments, needed))
