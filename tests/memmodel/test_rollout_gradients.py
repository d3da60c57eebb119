"""A rollout's numbers and gradients are those of the loop that concatenates."""

from functools import partial

import pytest
import torch
from rollout_cells import CELLS, D, Mean, assert_same, cat_loop, gradients, make
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from memmodel import AttentionCell, rollout

B, STEPS = 3, 5


def start(k0: int, device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, k0, D, device=device, dtype=dtype)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("name", CELLS)
class TestEveryCell:
    @pytest.mark.parametrize("k0", [1, 3])
    def test_as_the_cat_loop(
        self, name: str, recompute: bool, k0: int, device: torch.device
    ) -> None:
        cell = make(name, device)
        run = partial(rollout, recompute=recompute)
        expected = gradients(cat_loop, cell, start(k0, device), STEPS)
        assert_same(gradients(run, cell, start(k0, device), STEPS), expected)

    def test_loss_on_the_last_slot(self, name: str, recompute: bool, device: torch.device) -> None:
        cell, begin = make(name, device), start(2, device).requires_grad_()
        sources = [begin, *cell.parameters()]

        def last(memory: Tensor) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(memory[:, -1].sum(), sources, allow_unused=True)

        actual = last(rollout(cell, begin, STEPS, recompute=recompute))
        assert_same(list(actual), list(last(cat_loop(cell, begin, STEPS))))


@pytest.mark.parametrize("recompute", [True, False])
class TestArguments:
    def test_inputs(self, recompute: bool, device: torch.device) -> None:
        cell = make("Linear", device)
        inputs = torch.randn(B, STEPS, D, device=device, dtype=torch.float64)
        run = partial(rollout, recompute=recompute)
        expected = gradients(cat_loop, cell, start(2, device), STEPS, inputs)
        assert_same(gradients(run, cell, start(2, device), STEPS, inputs), expected)

    def test_no_step(self, recompute: bool, device: torch.device) -> None:
        cell, begin = make("Linear", device), start(2, device).requires_grad_()
        memory = rollout(cell, begin, 0, recompute=recompute)
        torch.testing.assert_close(memory, begin)
        memory.sum().backward()
        assert torch.equal(begin.grad, torch.ones_like(begin))

    @pytest.mark.parametrize("slot", [(), (2, 3), (2, 1, 2)])
    def test_slots_of_any_rank(
        self, slot: tuple[int, ...], recompute: bool, device: torch.device
    ) -> None:
        class Scale(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gain = nn.Parameter(torch.full(slot, 0.7))

            def forward(self, prefix: Tensor) -> Tensor:
                return torch.sin(prefix.sum(1) * self.gain)

        cell = Scale().to(device=device, dtype=torch.float64)
        begin = torch.randn(B, 2, *slot, device=device, dtype=torch.float64)
        run = partial(rollout, recompute=recompute)
        assert_same(gradients(run, cell, begin, STEPS), gradients(cat_loop, cell, begin, STEPS))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128])
    def test_dtypes(self, dtype: torch.dtype, recompute: bool, device: torch.device) -> None:
        cell = Mean(nn.Linear(D, D, device=device, dtype=dtype))
        begin = start(2, device, dtype).requires_grad_()
        sources = [begin, *cell.parameters()]
        actual, expected = (
            torch.autograd.grad(memory.abs().sum(), sources)
            for memory in (
                rollout(cell, begin, STEPS, recompute=recompute),
                cat_loop(cell, begin, STEPS),
            )
        )
        tolerance = {torch.bfloat16: 0.1, torch.float32: 1e-5}.get(dtype, 1e-9)
        assert_same(list(actual), list(expected), tolerance)

    def test_start_that_is_not_contiguous(self, recompute: bool, device: torch.device) -> None:
        cell = make("Linear", device)
        begin = start(3, device).transpose(0, 1).contiguous().transpose(0, 1)
        run = partial(rollout, recompute=recompute)
        expected = gradients(cat_loop, cell, begin, STEPS)
        assert_same(gradients(run, cell, begin, STEPS), expected)
        torch.testing.assert_close(
            rollout(cell, begin[:1].expand(B, 3, D), 2)[0], expected[0][0, :5]
        )

    def test_frozen_parameters(self, recompute: bool, device: torch.device) -> None:
        cell = make("Linear", device)
        cell.layer.weight.requires_grad_(False)
        rollout(cell, start(2, device), STEPS, recompute=recompute).sum().backward()
        bias_grad = cell.layer.bias.grad.clone()
        cell.zero_grad()
        cat_loop(cell, start(2, device), STEPS).sum().backward()
        assert cell.layer.weight.grad is None
        torch.testing.assert_close(cell.layer.bias.grad, bias_grad)

    def test_all_frozen(self, recompute: bool, device: torch.device) -> None:
        cell = make("Linear", device).requires_grad_(False)
        assert not rollout(cell, start(2, device), STEPS, recompute=recompute).requires_grad
        begin = start(2, device).requires_grad_()
        rollout(cell, begin, STEPS, recompute=recompute).sum().backward()
        actual, begin.grad = begin.grad, None
        cat_loop(cell, begin, STEPS).sum().backward()
        torch.testing.assert_close(actual, begin.grad)

    def test_without_gradients(self, recompute: bool, device: torch.device) -> None:
        cell = make("GRU", device)
        expected = cat_loop(cell, start(2, device), STEPS)
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                memory = rollout(cell, start(2, device), STEPS, recompute=recompute)
            assert not memory.requires_grad
            torch.testing.assert_close(memory, expected)

    def test_integers(self, recompute: bool, device: torch.device) -> None:
        begin = torch.ones(B, 2, dtype=torch.int64, device=device)
        memory = rollout(lambda prefix: prefix[:, -2:].sum(1), begin, 4, recompute=recompute)
        assert memory[0].tolist() == [1, 1, 2, 3, 5, 8]


def test_one_recorded_node(device: torch.device) -> None:
    """Nothing is saved but memory and parameters, whatever the number of steps."""
    cell = make("RNN", device)

    def saved(steps: int) -> int:
        sizes: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            rollout(cell, start(2, device), steps)
        return sum(sizes)

    assert saved(40) - saved(20) == B * 20 * D


def test_gradcheck(device: torch.device) -> None:
    cell = make("Linear", device)
    inputs = torch.randn(B, 3, D, device=device, dtype=torch.float64, requires_grad=True)

    def run(
        begin: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor, *, recompute: bool
    ) -> Tensor:
        network = Rolled(cell, recompute=recompute)
        parameters = {"cell.layer.weight": weight, "cell.layer.bias": bias}
        return torch.func.functional_call(network, parameters, (begin, 3, inputs))

    arguments = (start(2, device).requires_grad_(), inputs, *cell.parameters())
    assert gradcheck(partial(run, recompute=True), arguments)
    assert gradcheck(partial(run, recompute=False), arguments)
    assert gradgradcheck(partial(run, recompute=False), arguments)


class Rolled(nn.Module):
    def __init__(self, cell: nn.Module, *, recompute: bool = True) -> None:
        super().__init__()
        self.cell, self.recompute = cell, recompute

    def forward(self, begin: Tensor, steps: int, inputs: Tensor | None = None) -> Tensor:
        return rollout(self.cell, begin, steps, inputs, recompute=self.recompute)


def test_second_order_needs_recompute_false(device: torch.device) -> None:
    begin = start(2, device).requires_grad_()
    memory = rollout(make("Linear", device), begin, STEPS)
    (grad,) = torch.autograd.grad(memory.sum(), begin, create_graph=True)
    with pytest.raises(RuntimeError, match="recompute=False"):
        grad.square().sum().backward()


def test_second_order_matches_the_cat_loop(device: torch.device) -> None:
    cell = make("Conv1d", device)

    def penalty(run: object) -> list[Tensor]:
        begin = start(2, device).requires_grad_()
        (grad,) = torch.autograd.grad(
            run(cell, begin, STEPS)[:, -1].sum(), begin, create_graph=True
        )
        return list(torch.autograd.grad(grad.square().sum(), list(cell.parameters())))

    assert_same(penalty(partial(rollout, recompute=False)), penalty(cat_loop))


def test_nested_rollouts(device: torch.device) -> None:
    inner = make("Linear", device)

    class Outer(nn.Module):
        def __init__(self, run: object) -> None:
            super().__init__()
            self.inner, self.run = inner, run

        def forward(self, prefix: Tensor) -> Tensor:
            return self.run(self.inner, prefix, 2)[:, -1]

    expected = gradients(cat_loop, Outer(cat_loop), start(2, device), 3)
    assert_same(gradients(rollout, Outer(rollout), start(2, device), 3), expected)


def test_a_cell_and_a_head_that_share_weights(device: torch.device) -> None:
    cell = make("Linear", device)

    def total(run: object) -> list[Tensor | None]:
        cell.zero_grad()
        cell.layer(run(cell, start(2, device), STEPS)).square().sum().backward()
        return [parameter.grad.clone() for parameter in cell.parameters()]

    assert_same(total(rollout), total(cat_loop))


def test_functions(device: torch.device) -> None:
    layer, weight = nn.Linear(D, D).to(device, torch.float64), torch.randn(D, D, device=device)
    scale = weight.double().requires_grad_() * 2.0  # not a leaf
    scale.retain_grad()

    class Plain:
        def __init__(self) -> None:
            self.layer = layer

        def next_slot(self, prefix: Tensor) -> Tensor:
            return torch.tanh(self.layer(prefix.mean(1)))

    def shifted(prefix: Tensor, *, by: Tensor) -> Tensor:
        return torch.sin(prefix.mean(1) @ by)

    for function in (
        lambda prefix: torch.tanh(layer(prefix.mean(1))),
        Plain().next_slot,
        Mean(layer).forward,
        partial(shifted, by=scale),
        lambda prefix: shifted(prefix, by=scale),
        torch.no_grad()(lambda prefix: layer(prefix.mean(1))),
    ):
        totals = []
        for run in (rollout, cat_loop):
            layer.zero_grad()
            begin = start(2, device).requires_grad_()
            memory = run(function, begin, STEPS)
            sources = [begin, scale, *layer.parameters()]
            totals.append(list(torch.autograd.grad(memory.sum(), sources, allow_unused=True)))
        assert_same(*totals)


GLOBAL_LAYER = nn.Linear(D, D, dtype=torch.float64)
GLOBAL_WEIGHT = nn.Parameter(torch.randn(D, D, dtype=torch.float64))


def global_cell(prefix: Tensor) -> Tensor:
    return torch.tanh(GLOBAL_LAYER(prefix.mean(1)) @ GLOBAL_WEIGHT)


def test_a_function_that_uses_globals() -> None:
    totals = []
    sources = [GLOBAL_WEIGHT, *GLOBAL_LAYER.parameters()]
    for run in (rollout, cat_loop):
        memory = run(global_cell, start(2, torch.device("cpu")), STEPS)
        totals.append(list(torch.autograd.grad(memory.sum(), sources)))
    assert_same(*totals)


def test_a_function_writes_to_its_own_variables() -> None:
    weight, calls, log = torch.eye(D, dtype=torch.float64, requires_grad=True), 0, []

    def cell(prefix: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        log.append(calls)
        return torch.tanh(prefix.mean(1) @ weight)

    rollout(cell, start(2, torch.device("cpu")), STEPS)
    assert (calls, log) == (STEPS, [1, 2, 3, 4, 5])


# torch.autograd.forward_ad itself imports what still uses it.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("cell", [Mean(), AttentionCell(D), AttentionCell(D).requires_grad_(False)])
def test_forward_mode(cell: nn.Module, device: torch.device) -> None:
    cell, begin = cell.to(device, torch.float64), start(2, device)
    tangents = []
    for run in (rollout, cat_loop):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(begin, torch.ones_like(begin))
            tangents.append(forward_ad.unpack_dual(run(cell, dual, STEPS)).tangent)
    torch.testing.assert_close(*tangents)
