"""Backward repeats the forward that ran: random numbers, autocast, buffers, shapes."""

import re

import pytest
import torch
from rollout_cells import (
    D,
    Hiding,
    Masked,
    Mean,
    SelfAttention,
    assert_same,
    cat_loop,
    gradients,
    make,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from memmodel import MemoryNetwork, rollout

B, STEPS = 3, 5


def start(device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, 2, D, device=device, dtype=dtype)


class TestRandomNumbers:
    @pytest.mark.parametrize("cell", [SelfAttention(0.5), Mean(nn.Dropout(0.5))])
    def test_dropout_as_the_cat_loop(self, cell: nn.Module, device: torch.device) -> None:
        cell, begin = cell.to(device, torch.float64), start(device)
        torch.manual_seed(2)
        expected = gradients(cat_loop, cell, begin, STEPS)
        after = torch.rand(3, device=device)
        torch.manual_seed(2)
        assert_same(gradients(rollout, cell, begin, STEPS), expected)
        assert torch.equal(torch.rand(3, device=device), after)

    def test_backward_leaves_the_generators_alone(self, device: torch.device) -> None:
        cell = SelfAttention(0.5).to(device, torch.float64)
        memory = rollout(cell, start(device), STEPS)
        torch.manual_seed(3)
        expected = torch.rand(3, device=device)
        torch.manual_seed(3)
        memory.sum().backward()
        assert torch.equal(torch.rand(3, device=device), expected)

    def test_a_cell_that_draws_in_some_steps(self, device: torch.device) -> None:
        class Sometimes(Mean):
            def forward(self, prefix: Tensor) -> Tensor:
                slot = super().forward(prefix)
                return nn.functional.dropout(slot) if prefix.shape[1] % 2 else slot

        cell = Sometimes().to(device, torch.float64)
        torch.manual_seed(2)
        expected = gradients(cat_loop, cell, start(device), STEPS)
        torch.manual_seed(2)
        assert_same(gradients(rollout, cell, start(device), STEPS), expected)

    def test_repeated_backward_draws_the_same(self, device: torch.device) -> None:
        cell, begin = SelfAttention(0.5).to(device, torch.float64), start(device).requires_grad_()
        loss = rollout(cell, begin, STEPS).square().sum()
        first, second = (torch.autograd.grad(loss, begin, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second)


class TestAutocast:
    def test_as_the_cat_loop(self, device: torch.device) -> None:
        cell, begin = make("Linear", device, torch.float32), start(device, torch.float32)

        def run(loop: object) -> list[Tensor | None]:
            def forward(*arguments: object) -> Tensor:
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    return loop(*arguments)

            return gradients(forward, cell, begin, STEPS)

        actual, expected = run(rollout), run(cat_loop)
        assert actual[0].dtype == torch.float32
        assert_same(actual, expected, 1e-2)
        without = gradients(rollout, cell, begin, STEPS)
        assert not torch.allclose(actual[0], without[0], atol=1e-6)

    def test_backward_uses_the_forward_state(self, device: torch.device) -> None:
        seen: list[bool] = []

        class Note(Mean):
            def forward(self, prefix: Tensor) -> Tensor:
                seen.append(torch.is_autocast_enabled(device.type))
                return super().forward(prefix)

        cell, begin = Note().to(device), start(device, torch.float32)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            memory = rollout(cell, begin, STEPS)
        memory.sum().backward()
        assert seen == [True] * (2 * STEPS)
        seen.clear()
        memory = rollout(cell, begin, STEPS)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            memory.sum().backward()
        assert seen == [False] * (2 * STEPS)


class TestRefusals:
    def test_batch_norm_in_training(self, device: torch.device) -> None:
        norm = nn.BatchNorm1d(D).to(device)
        with pytest.raises(RuntimeError, match=r"layer\.(running_mean|num_batches_tracked)"):
            rollout(Mean(norm), start(device, torch.float32), STEPS)
        assert not norm.running_mean.any()
        assert not norm.num_batches_tracked
        rollout(Mean(norm.eval()), start(device, torch.float32), STEPS).sum().backward()
        assert norm.weight.grad is not None

    def test_spectral_norm_in_training(self, device: torch.device) -> None:
        layer = parametrizations.spectral_norm(nn.Linear(D, D)).to(device)
        before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
        with pytest.raises(RuntimeError, match=r"parametrizations\.weight\.0\._[uv]"):
            rollout(Mean(layer), start(device, torch.float32), STEPS)
        for name, buffer in layer.named_buffers():
            assert torch.equal(buffer, before[name])

    def test_a_buffer_that_is_reassigned(self, device: torch.device) -> None:
        class Counting(Masked):
            def forward(self, prefix: Tensor) -> Tensor:
                self.mask = self.mask * 0.5
                return super().forward(prefix)

        cell = Counting().to(device)
        with pytest.raises(RuntimeError, match="'mask'"):
            rollout(cell, start(device, torch.float32), STEPS)
        assert torch.equal(cell.mask, torch.ones(D, D, device=device).tril())

    def test_a_prefix_that_is_modified(self, device: torch.device) -> None:
        cell, begin = make("Linear", device), start(device)
        before = begin.clone()
        with pytest.raises(RuntimeError, match="prefix"):
            rollout(lambda prefix: cell(prefix.mul_(2.0)), begin, STEPS)
        assert torch.equal(begin, before)

    def test_inputs_that_are_modified(self, device: torch.device) -> None:
        cell, inputs = make("Linear", device), torch.zeros(B, STEPS, D, device=device).double()
        with pytest.raises(RuntimeError, match="inputs"):
            rollout(lambda prefix, x: cell(prefix, x.add_(1.0)), start(device), STEPS, inputs)

    def test_shapes_that_change_in_backward(self, device: torch.device) -> None:
        class Shrinking(Mean):
            def forward(self, prefix: Tensor) -> Tensor:
                slot = super().forward(prefix)
                return slot[:, :1] if torch.is_grad_enabled() and shrink else slot

        shrink = False
        memory = rollout(Shrinking().to(device, torch.float64), start(device), STEPS)
        shrink = True
        with pytest.raises(ValueError, match=re.escape("(3, 4) to fit start, got shape (3, 1)")):
            memory.sum().backward()

    def test_memory_modified_before_backward(self, device: torch.device) -> None:
        memory = rollout(make("Linear", device), start(device), STEPS)
        loss = memory.sum()
        with torch.no_grad():
            memory.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_parameters_modified_before_backward(self, device: torch.device) -> None:
        cell = make("Linear", device)
        loss = rollout(cell, start(device), STEPS).sum()
        with torch.no_grad():
            cell.layer.weight.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


class Counting(Mean):
    """Depends on how often it was called."""

    calls = 0

    def forward(self, prefix: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(prefix) * self.calls


class TestChangedSince:
    """Backward notices that the cell is no longer the one of forward."""

    @pytest.mark.parametrize("compiled", [False, True])
    def test_mode(self, compiled: bool, device: torch.device) -> None:
        network = MemoryNetwork(Mean(nn.Dropout(0.5)).to(device, torch.float64))
        run = torch.compile(network, fullgraph=True) if compiled else network
        torch.manual_seed(2)
        memory = run(start(device).requires_grad_(), STEPS)
        network.eval()
        with pytest.raises(RuntimeError, match=r"another slot in backward.*train\(\) and eval\(\)"):
            memory.sum().backward()

    def test_counter(self, device: torch.device) -> None:
        memory = rollout(Counting().to(device, torch.float64), start(device), STEPS)
        with pytest.raises(RuntimeError, match="another slot in backward"):
            memory.sum().backward()

    def test_nan_is_not_a_change(self, device: torch.device) -> None:
        cell, begin = Mean().to(device, torch.float64), start(device)
        begin[0] = torch.nan
        assert rollout(cell, begin, STEPS).sum().backward() is None

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("name", ["MultiheadAttention", "LSTM"])
    def test_rounding_is_not_a_change(
        self, name: str, dtype: torch.dtype, device: torch.device
    ) -> None:
        cell = make(name, device, dtype)
        assert rollout(cell, start(device, dtype), STEPS).sum().backward() is None


class TestLostGradients:
    @pytest.mark.parametrize("computed", [False, True])
    def test_hidden_tensors(self, computed: bool, device: torch.device) -> None:
        hidden = torch.ones(D, device=device, dtype=torch.float64, requires_grad=True)
        cell = Hiding(hidden * 2 if computed else hidden)
        with pytest.raises(RuntimeError, match=r"nn\.Parameter"):
            rollout(cell, start(device), STEPS)
        rollout(cell, start(device), STEPS, recompute=False).sum().backward()
        assert hidden.grad is not None

    def test_a_hidden_module(self, device: torch.device) -> None:
        class List(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = [nn.Linear(D, D)]  # not an nn.ModuleList

            def forward(self, prefix: Tensor) -> Tensor:
                return self.layers[0](prefix.mean(1))

        with pytest.raises(RuntimeError, match="submodule"):
            rollout(List(), torch.zeros(B, 1, D), STEPS)

    def test_a_hidden_module_that_is_used_later(self, device: torch.device) -> None:
        class Later(Mean):
            def __init__(self) -> None:
                super().__init__()
                self.layers = [nn.Linear(D, D)]

            def forward(self, prefix: Tensor) -> Tensor:
                slot = super().forward(prefix)
                return self.layers[0](slot) if prefix.shape[1] == 4 else slot

        memory = rollout(Later(), torch.zeros(B, 1, D), STEPS)
        with pytest.raises(RuntimeError, match="submodule"):
            memory.sum().backward()

    def test_a_weight_kept_from_forward(self, device: torch.device) -> None:
        class Keeping(Mean):
            weight: Tensor | None = None

            def forward(self, prefix: Tensor) -> Tensor:
                if self.weight is None:
                    self.weight = self.layer.weight.tanh()
                return torch.tanh(prefix.mean(1) @ self.weight)

        memory = rollout(Keeping().to(device, torch.float64), start(device), STEPS)
        with pytest.raises(RuntimeError, match="gradient would be lost"):
            memory.sum().backward()

    def test_cached_parametrizations(self, device: torch.device) -> None:
        cell = parametrizations.weight_norm(nn.Linear(D, D))
        cell = Mean(cell).to(device, torch.float64)
        expected = gradients(cat_loop, cell, start(device), STEPS)
        with parametrize.cached():
            assert_same(gradients(rollout, cell, start(device), STEPS), expected)

    def test_hidden_tensors_cut_off(self, device: torch.device) -> None:
        hidden = torch.ones(D, device=device, dtype=torch.float64, requires_grad=True)
        assert rollout(Hiding(hidden, detach=True), start(device), STEPS).shape == (B, 7, D)


class TestArguments:
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"cell": 3}, TypeError, "cell must be an nn.Module or a function, got int"),
            ({"start": [1.0]}, TypeError, "start must be a Tensor, got list"),
            ({"start": torch.zeros(3)}, ValueError, "start must be .* got shape (3,)"),
            ({"start": torch.zeros(3, 0, D)}, ValueError, "at least one slot"),
            ({"steps": 2.0}, TypeError, "steps must be an int, got float"),
            ({"steps": True}, TypeError, "steps must be an int, got bool"),
            ({"steps": torch.tensor(2)}, TypeError, "steps must be an int, got Tensor"),
            ({"steps": -1}, ValueError, "steps must be at least 0, got -1"),
            ({"inputs": [0]}, TypeError, "inputs must be a Tensor or None, got list"),
            ({"inputs": torch.zeros(3, 4, D)}, ValueError, "(3, 5, ...), got shape (3, 4, 4)"),
            ({"inputs": torch.zeros(2, 5, D)}, ValueError, "(3, 5, ...), got shape (2, 5, 4)"),
            (
                {"inputs": torch.zeros(3, 5, D, device="meta")},
                ValueError,
                "inputs must be on start's device cpu, got meta",
            ),
            ({"cell": lambda prefix: None}, TypeError, "cell must return a Tensor, got NoneType"),
            (
                {"cell": lambda prefix: prefix},
                ValueError,
                "(3, 4) to fit start, got shape (3, 1, 4)",
            ),
            (
                {"cell": lambda prefix: prefix[:, 0].double()},
                ValueError,
                "start's dtype torch.float32, got torch.float64",
            ),
            (
                {"cell": lambda prefix: prefix[:, 0].to("meta")},
                ValueError,
                "start's device cpu, got meta",
            ),
        ],
    )
    @pytest.mark.parametrize("recompute", [True, False])
    def test_errors(
        self, change: dict[str, object], error: type[Exception], message: str, recompute: bool
    ) -> None:
        arguments = {"cell": Mean(), "start": torch.zeros(3, 1, D), "steps": 5} | change
        pattern = re.escape(message).replace(re.escape(".*"), ".*")
        with pytest.raises(error, match=pattern):
            rollout(**arguments, recompute=recompute)
