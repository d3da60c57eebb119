"""Training on a part of a batch, in a module that a spawned process can import."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from rollout_cells import D, make
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from memmodel import MemoryNetwork

B, STEPS = 4, 5


def network(device: torch.device) -> MemoryNetwork:
    return MemoryNetwork(make("GRU", device), nn.Linear(D, 1).to(device, torch.float64))


def start(device: torch.device, batch: int = B) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(batch, 2, D, device=device, dtype=torch.float64)


def loss_of(model: nn.Module, begin: Tensor) -> Tensor:
    return model(begin, STEPS).square().mean()


def train_part(rank: int, port: int, out: Path, compiled: bool) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = MemoryNetwork(make("Linear", device))
    parallel = DistributedDataParallel(model)
    runner = torch.compile(parallel) if compiled else parallel
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(runner, start(device).chunk(2)[rank]).backward()
        optimizer.step()
    torch.save([p.detach() for p in model.parameters()], out / f"{rank}.pt")
    dist.barrier()
    # PyTorch's teardown deadlocks at times: DistributedDataParallel's reducer frees the process
    # group with the GIL held, and joins a thread of gloo's that waits for the GIL.
    os._exit(0)
