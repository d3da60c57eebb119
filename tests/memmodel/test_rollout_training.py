"""Rollouts inside what people train with."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from rollout_cells import D, Mean, assert_same, cat_loop, gradients, make
from rollout_parts import STEPS, B, loss_of, network, start, train_part
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memmodel import MemoryNetwork, rollout


class Looped(nn.Module):
    """The same network over the loop that concatenates."""

    def __init__(self, model: MemoryNetwork) -> None:
        super().__init__()
        self.cell, self.head = model.cell, model.head

    def forward(self, begin: Tensor, steps: int) -> Tensor:
        return self.head(cat_loop(self.cell, begin, steps)[:, begin.shape[1] :])


def grads(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("fused", [True, False])
def test_optimizers_accumulation_and_clipping(fused: bool, device: torch.device) -> None:
    weights = []
    for wrap in (lambda model: model, Looped):
        model = wrap(network(device))
        torch.manual_seed(4)
        model.head.reset_parameters()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused)
        for _ in range(3):
            optimizer.zero_grad()
            for part in start(device).chunk(2):
                (loss_of(model, part) / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        weights.append([p.detach() for p in model.parameters()])
    assert_same(*weights)


def test_grad_scaler(device: torch.device) -> None:
    model = MemoryNetwork(Mean().to(device))
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = model(start(device).float(), STEPS).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = cat_loop(model.cell, start(device).float(), STEPS).square().mean()
    loss.backward()
    assert_same(plain, grads(model), 1e-2)
    scaler.step(optimizer)
    scaler.update()
    assert all((p != old).any() for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant: bool, device: torch.device) -> None:
    cell = make("MultiheadAttention", device)

    def checkpointed(cell: nn.Module, begin: Tensor, steps: int) -> Tensor:
        return checkpoint(lambda x: rollout(cell, x, steps), begin, use_reentrant=reentrant)

    expected = gradients(cat_loop, cell, start(device), STEPS)
    assert_same(gradients(checkpointed, cell, start(device), STEPS), expected)


def test_repeated_backward(device: torch.device) -> None:
    model = network(device)
    loss = loss_of(model, start(device))
    loss.backward(retain_graph=True)
    once = grads(model)
    loss.backward()
    assert_same(grads(model), [2 * grad for grad in once])


def test_hooks_fire_once(device: torch.device) -> None:
    model = network(device)
    calls: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda grad, name=name: calls.append(name))
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: calls.append(name))
    loss_of(model, start(device)).backward()
    assert sorted(calls) == sorted(2 * [name for name, _ in model.named_parameters()])


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
def test_anomaly_mode(device: torch.device) -> None:
    class Broken(Mean):
        def forward(self, prefix: Tensor) -> Tensor:
            return super().forward(prefix) + torch.sqrt(prefix[:, 0] * 0)

    cell, begin = Broken().to(device), torch.zeros(B, 1, D, device=device)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
        rollout(cell, begin, 2).sum().backward()


def test_functional_call(device: torch.device) -> None:
    model = network(device)
    weights = {name: 2 * p.detach() for name, p in model.named_parameters()}
    leaves = {name: weight.requires_grad_() for name, weight in weights.items()}
    totals = []
    for module in (model, Looped(model)):
        output = torch.func.functional_call(module, leaves, (start(device), STEPS))
        totals.append(list(torch.autograd.grad(output.sum(), list(leaves.values()))))
    assert_same(*totals)


@pytest.mark.parametrize("recompute", [True, False])
def test_torch_func(recompute: bool, device: torch.device) -> None:
    cell, begins = make("Linear", device), start(device).unsqueeze(1)  # (4, 1, 2, D)

    def total(run: object) -> tuple[Tensor, Tensor]:
        per_sample = torch.vmap(torch.func.grad(lambda x: run(x).square().sum()))(begins)
        return per_sample, torch.vmap(run)(begins)

    actual = total(lambda x: rollout(cell, x, STEPS, recompute=recompute))
    assert_same(list(actual), list(total(lambda x: cat_loop(cell, x, STEPS))))


def test_export(device: torch.device) -> None:
    model = MemoryNetwork(make("Linear", device), nn.Linear(D, 1).to(device, torch.float64))
    program = torch.export.export(model, (start(device), STEPS))
    assert "memmodel" not in str(program.graph)
    torch.testing.assert_close(program.module()(start(device), STEPS), model(start(device), STEPS))


def test_a_larger_compiled_model(device: torch.device) -> None:
    torch.compiler.reset()

    class Larger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(D, D)
            self.memory = MemoryNetwork(Mean())
            self.after = nn.Linear(D, 1)

        def forward(self, x: Tensor, steps: int) -> Tensor:
            return self.after(torch.relu(self.memory(self.before(x), steps)))

    model = Larger().to(device, torch.float64)
    loss_of(model, start(device)).backward()
    expected = grads(model)
    model.zero_grad()
    loss_of(torch.compile(model, fullgraph=True), start(device)).backward()
    assert_same(grads(model), expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_two_processes(compiled: bool, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train_part, (port, tmp_path, compiled), nprocs=2)
    device = torch.device("cpu")
    model = MemoryNetwork(make("Linear", device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, start(device)).backward()
        optimizer.step()
    for rank in range(2):
        assert_same(torch.load(tmp_path / f"{rank}.pt"), [p.detach() for p in model.parameters()])


def test_threads_that_share_a_cell() -> None:
    cell = Mean().double()
    begin, parameters = torch.randn(2, 1, D, dtype=torch.float64), list(cell.parameters())

    def gradients(_: int) -> tuple[Tensor, ...]:
        return torch.autograd.grad(rollout(cell, begin, 30).square().sum(), parameters)

    expected = gradients(0)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(gradients, range(40)))
    for actual in results:
        torch.testing.assert_close(actual, expected)
    assert all(own is kept for own, kept in zip(cell.parameters(), parameters, strict=True))
