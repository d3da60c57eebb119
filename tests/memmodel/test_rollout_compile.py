"""Compiled rollouts: one op in the graph, the cell compiled once, the numbers of eager mode."""

import copy
import gc
import pickle
import re
import weakref

import pytest
import torch
from rollout_cells import D, Hiding, Mean, SelfAttention, assert_same, gradients, make
from torch import Tensor, nn
from torch._dynamo.utils import counters

from memmodel import AttentionCell, MemoryNetwork, RecurrentCell, rollout


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()
    counters.clear()


def compiled_graphs() -> int:
    """Graphs compiled so far: of models, and of cells inside the op."""
    return counters["stats"]["unique_graphs"]


def start(batch: int, k0: int, device: torch.device) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(batch, k0, D, device=device, dtype=torch.float64)


def forward(network: nn.Module, *arguments: object) -> Tensor:
    return network(*arguments)


class Prefixed(AttentionCell):
    """An attention cell without its own rollout: a subclass that overrides forward."""

    def forward(self, prefix: Tensor, inputs: Tensor | None = None) -> Tensor:
        return super().forward(prefix, inputs)


@pytest.mark.parametrize("name", ["attention", "tied weights"])
def test_numbers_of_eager_mode(name: str, device: torch.device) -> None:
    cell = Prefixed(D, heads=2).to(device).double() if name == "attention" else make(name, device)
    network = MemoryNetwork(cell, nn.Linear(D, 1, dtype=torch.float64, device=device))
    compiled = torch.compile(network, fullgraph=True)
    for batch, k0, steps in ((2, 2, 4), (3, 1, 6)):
        expected = gradients(forward, network, start(batch, k0, device), steps)
        actual = gradients(
            lambda _, *arguments: compiled(*arguments), network, start(batch, k0, device), steps
        )
        assert_same(actual, expected)


def test_inputs_and_module_compile(device: torch.device) -> None:
    network = MemoryNetwork(make("Linear", device))
    inputs = torch.randn(3, 4, D, device=device, dtype=torch.float64)
    expected = gradients(forward, network, start(3, 2, device), 4, inputs)
    network.compile(fullgraph=True)
    assert_same(gradients(forward, network, start(3, 2, device), 4, inputs), expected)


def test_one_op_in_the_graph(device: torch.device) -> None:
    seen: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        seen.append(graph)
        return graph

    cell = make("Linear", device)
    run = torch.compile(lambda x: rollout(cell, x.tanh(), 50) * 2, fullgraph=True, backend=backend)
    run(start(3, 2, device))
    (graph,) = seen
    targets = [str(node.target) for node in graph.graph.nodes if node.op.startswith("call_")]
    assert targets.count("memmodel.rollout.default") == 1
    assert len(targets) < 8


def test_no_recompilation_once_sizes_have_changed(device: torch.device) -> None:
    network = torch.compile(MemoryNetwork(make("Linear", device)), fullgraph=True)

    def graphs_for(batch: int, k0: int, steps: int) -> int:
        before = compiled_graphs()
        network(start(batch, k0, device).requires_grad_(), steps).sum().backward()
        return compiled_graphs() - before

    assert graphs_for(3, 2, 4) == 3  # the network, the cell's step, the gradient of that step
    for change, again in (
        ((3, 2, 5), [(3, 2, 6), (3, 2, 64)]),
        ((3, 3, 5), [(3, 4, 7), (3, 9, 3)]),
        ((4, 3, 5), [(5, 3, 5), (16, 8, 32)]),
    ):
        assert graphs_for(*change) == 1
        assert [graphs_for(*sizes) for sizes in again] == [0, 0]
    # Sizes of one are compiled for themselves.
    assert graphs_for(3, 1, 5) == 1
    assert graphs_for(1, 3, 5) == 3
    assert graphs_for(1, 4, 6) == 0


def test_hooks_that_come_and_go_are_noticed(device: torch.device) -> None:
    cell = Mean().to(device, torch.float64)
    network = torch.compile(MemoryNetwork(cell), fullgraph=True)
    first = start(3, 2, device)
    plain = network(first, 5)
    for _ in range(2):
        hook = cell.layer.register_forward_hook(lambda module, arguments, output: output * 0.5)
        hooked = network(first, 5)
        assert_same([hooked], [rollout(cell, first, 5)])
        assert not torch.allclose(hooked, plain)
        hook.remove()
        before = compiled_graphs()
        assert_same([network(first, 5)], [plain])
        assert compiled_graphs() == before


def test_long_prefixes_leave_the_batch_free(device: torch.device) -> None:
    network = torch.compile(MemoryNetwork(Mean().to(device)), fullgraph=True)
    around = 4096  # inductor sums more float32 numbers than that in another way on the CPU

    def graphs_for(batch: int, k0: int, steps: int) -> int:
        before = compiled_graphs()
        network(start(batch, k0, device).float().requires_grad_(), steps).sum().backward()
        return compiled_graphs() - before

    assert graphs_for(2, around - 3, 6) <= 5  # the network and, on either side, two for the cell
    assert graphs_for(3, around - 2, 5) <= 1
    assert graphs_for(4, around + 9, 4) == 0


def test_each_mode_has_its_own_graphs(device: torch.device) -> None:
    cell = Mean(nn.Dropout(0.5)).to(device)
    network = MemoryNetwork(cell)
    compiled = torch.compile(network, fullgraph=True)
    for training in (True, False, True):
        network.train(training)
        torch.manual_seed(2)
        expected = gradients(forward, network, start(3, 2, device), 5)
        torch.manual_seed(2)
        actual = gradients(
            lambda _, *arguments: compiled(*arguments), network, start(3, 2, device), 5
        )
        assert_same(actual, expected)


def test_attributes_of_the_cell_may_change(device: torch.device) -> None:
    class Scaled(Mean):
        scale = 1.0

        def forward(self, prefix: Tensor) -> Tensor:
            return super().forward(prefix) * self.scale

    network = MemoryNetwork(Scaled().to(device).double())
    compiled = torch.compile(network, fullgraph=True)
    for scale in (1.0, 0.5):
        network.cell.scale = scale
        expected = gradients(forward, network, start(3, 2, device), 5)
        actual = gradients(
            lambda _, *arguments: compiled(*arguments), network, start(3, 2, device), 5
        )
        assert_same(actual, expected)


def test_autocast(device: torch.device) -> None:
    network = MemoryNetwork(Mean().to(device))
    compiled, begin = torch.compile(network, fullgraph=True), start(3, 2, device).float()

    def run(model: nn.Module) -> list[Tensor | None]:
        def call(_: nn.Module, *arguments: object) -> Tensor:
            with torch.autocast(device.type, dtype=torch.bfloat16):
                return model(*arguments)

        return gradients(call, network, begin, 5)

    assert_same(run(compiled), run(network), 2e-2)
    without = gradients(forward, network, begin, 5)
    assert not torch.allclose(run(compiled)[0], without[0], atol=1e-6)


def test_copies_are_cells_of_their_own(device: torch.device) -> None:
    network = MemoryNetwork(make("Linear", device))
    compiled = torch.compile(network, fullgraph=True)
    compiled(start(3, 2, device), 4)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        other.cell.layer.weight.data.mul_(2)
        expected = gradients(forward, other, start(3, 2, device), 4)
        run = torch.compile(other, fullgraph=True)
        actual = gradients(
            lambda _, *arguments, run=run: run(*arguments), other, start(3, 2, device), 4
        )
        assert_same(actual, expected)


def test_one_function_many_cells(device: torch.device) -> None:
    @torch.compile(fullgraph=True)
    def run(cell: nn.Module, begin: Tensor, steps: int) -> Tensor:
        return rollout(cell, begin, steps)

    for gain in (1.0, 2.0):
        cell = make("Linear", device)
        cell.layer.weight.data.mul_(gain)
        expected = gradients(rollout, cell, start(3, 2, device), 4)
        assert_same(gradients(run, cell, start(3, 2, device), 4), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: type, device: torch.device) -> None:
    network = MemoryNetwork(make("Linear", device))
    compiled = torch.compile(network, fullgraph=True)
    with mode():
        actual = compiled(start(3, 2, device), 4)
        torch.testing.assert_close(actual, network(start(3, 2, device), 4))
    assert not actual.requires_grad


@pytest.mark.parametrize(
    "cell", [AttentionCell(D), RecurrentCell(nn.GRU(D, D))], ids=["attention", "GRU"]
)
def test_cells_with_a_rollout_of_their_own(cell: nn.Module, device: torch.device) -> None:
    network = MemoryNetwork(cell.to(device, torch.float64))
    compiled = torch.compile(network, fullgraph=True)
    expected = gradients(forward, network, start(3, 2, device), 4)
    actual = gradients(lambda _, *arguments: compiled(*arguments), network, start(3, 2, device), 4)
    assert_same(actual, expected)


def test_cells_are_not_kept_alive() -> None:
    cell = Mean()
    torch.compile(MemoryNetwork(cell), fullgraph=True)(torch.zeros(2, 2, D), 3)
    gone = weakref.ref(cell)
    del cell
    torch.compiler.reset()
    gc.collect()
    assert gone() is None


class TestRefusals:
    def test_functions(self) -> None:
        def run(begin: Tensor) -> Tensor:
            return rollout(lambda prefix: prefix[:, -1], begin, 3)

        with pytest.raises(Exception, match=r"cell must be an nn\.Module"):
            torch.compile(run, fullgraph=True)(torch.zeros(2, 1, D))
        # Without fullgraph it runs eagerly.
        assert torch.compile(run)(torch.zeros(2, 1, D)).shape == (2, 4, D)

    def test_batch_norm(self, device: torch.device) -> None:
        norm = nn.BatchNorm1d(D).to(device)
        network = torch.compile(MemoryNetwork(Mean(norm)), fullgraph=True)
        with pytest.raises(RuntimeError, match=r"layer\.(running_mean|num_batches_tracked)"):
            network(start(3, 2, device).float(), 3)
        assert not norm.running_mean.any()

    def test_a_prefix_that_is_modified(self, device: torch.device) -> None:
        class Writing(Mean):
            def forward(self, prefix: Tensor) -> Tensor:
                return super().forward(prefix.mul_(2.0))

        network = torch.compile(MemoryNetwork(Writing().to(device)), fullgraph=True)
        with pytest.raises(RuntimeError, match="prefix"):
            network(start(3, 2, device).float(), 3)

    def test_hidden_tensors(self, device: torch.device) -> None:
        hidden = torch.ones(D, device=device, dtype=torch.float64, requires_grad=True)
        network = torch.compile(MemoryNetwork(Hiding(hidden)), fullgraph=True)
        with pytest.raises(RuntimeError, match=r"nn\.Parameter"):
            network(start(3, 2, device), 3)
        cut = torch.compile(MemoryNetwork(Hiding(hidden, detach=True)), fullgraph=True)
        assert cut(start(3, 2, device), 3).shape == (3, 5, D)

    def test_slots_that_do_not_fit(self, device: torch.device) -> None:
        network = torch.compile(MemoryNetwork(Mean(nn.Linear(D, 2)).to(device)), fullgraph=True)
        message = "cell must return slots (B, *slot) = (3, 4) to fit start, got shape (3, 2)"
        with pytest.raises(ValueError, match=re.escape(message)):
            network(start(3, 2, device).float(), 3)


def test_a_cell_that_cannot_be_compiled(device: torch.device) -> None:
    network = MemoryNetwork(make("GRU", device))
    compiled = torch.compile(network, fullgraph=True)
    expected = gradients(forward, network, start(3, 2, device), 5)
    with pytest.warns(UserWarning, match="Last cannot be compiled and runs uncompiled"):
        actual = gradients(
            lambda _, *arguments: compiled(*arguments), network, start(3, 2, device), 5
        )
    assert_same(actual, expected)


def test_dropout_in_attention(device: torch.device) -> None:
    network = MemoryNetwork(SelfAttention(0.5).to(device).double())
    compiled = torch.compile(network, fullgraph=True)
    torch.manual_seed(2)
    expected = gradients(forward, network, start(3, 2, device), 5)
    torch.manual_seed(2)
    actual = gradients(lambda _, *arguments: compiled(*arguments), network, start(3, 2, device), 5)
    assert_same(actual, expected)
    with torch.no_grad():
        torch.manual_seed(2)
        memory = network(start(3, 2, device), 5)
        torch.manual_seed(2)
        torch.testing.assert_close(compiled(start(3, 2, device), 5), memory)


def test_a_cell_that_begins_to_draw_later(device: torch.device) -> None:
    class Later(Mean):
        def forward(self, prefix: Tensor) -> Tensor:
            slot = super().forward(prefix)
            return nn.functional.dropout(slot) if prefix.shape[1] > 3 else slot

    compiled = torch.compile(MemoryNetwork(Later().to(device).double()), fullgraph=True)
    with pytest.raises(RuntimeError, match="draw random numbers in its first step"):
        compiled(start(3, 2, device), 5)
