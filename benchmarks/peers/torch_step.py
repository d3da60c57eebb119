"""What the PyTorch strategies share: cells in plain operations, and the training step."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads import Workload, find, make_data

Roll = Callable[[Tensor, int], Tensor]
Run = Callable[[], dict[str, Tensor]]


class PlainAttention(nn.Module):
    """``memmodel.AttentionCell`` with one head, as anyone would write it.

    Args:
        width: width D of a slot.
        sdpa: read by 4-D ``scaled_dot_product_attention`` instead of two ``bmm``.
    """

    def __init__(self, width: int, *, sdpa: bool) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.controller = nn.Linear(2 * width, width)
        self.output = nn.Linear(width, width)
        self.sdpa = sdpa

    def forward(self, prefix: Tensor) -> Tensor:
        newest = prefix[:, -1]
        query = self.query(newest).unsqueeze(1)  # (B, 1, D)
        if self.sdpa:
            keys = prefix.unsqueeze(1)  # (B, 1, k, D)
            read = F.scaled_dot_product_attention(query.unsqueeze(1), keys, keys).flatten(1)
        else:
            scores = torch.bmm(query, prefix.transpose(1, 2)) / math.sqrt(prefix.shape[2])
            read = torch.bmm(torch.softmax(scores, dim=2), prefix).squeeze(1)
        hidden = torch.tanh(self.controller(torch.cat([newest, read], dim=1)))
        return read + self.output(hidden)


class PlainRNN(nn.Module):
    """``nn.RNN`` over the prefix: the last output is the next slot."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(width, width, batch_first=True)

    def forward(self, prefix: Tensor) -> Tensor:
        return self.rnn(prefix)[0][:, -1]


def plain_cell(workload: Workload, *, sdpa: bool = False) -> nn.Module:
    """The workload's cell in plain PyTorch operations."""
    if workload.cell == "rnn":
        return PlainRNN(workload.width)
    return PlainAttention(workload.width, sdpa=sdpa)


def training_step(
    workload: str,
    cell: Callable[[Workload], nn.Module],
    wrap: Callable[[nn.Module], Roll],
    device: str = "cpu",
) -> Run:
    """Prepare forward and backward of one workload.

    Args:
        workload: its name.
        cell: makes the cell, which then gets the workload's weights.
        wrap: makes the function ``(start, steps) -> memory`` that rolls the cell out.
        device: where to run.
    """
    shapes = find(workload)
    data = make_data(shapes)
    module = cell(shapes)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in data.parameters.items()})
    module.to(device)
    start = torch.from_numpy(data.start).to(device).requires_grad_()
    loss_weights = torch.from_numpy(data.loss_weights).to(device)
    leaves = {"start": start} | dict(module.named_parameters())
    roll = wrap(module)

    def run() -> dict[str, Tensor]:
        loss = (roll(start, shapes.steps)[:, -1] * loss_weights).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return {"loss": loss.detach()} | dict(zip(leaves, gradients, strict=True))

    return run
