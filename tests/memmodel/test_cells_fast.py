"""Fast rollouts of the cells against calling the same cells step by step."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import memmodel
from memmodel import AttentionCell, RecurrentCell
from memmodel._rollout.fast import has_fast_path
from memmodel.cells import attention_scratch, recurrent_backward

B, D, WIDTH = 2, 8, 3


def attention(**options: Any) -> Callable[..., AttentionCell]:
    return lambda **factory: AttentionCell(D, **options, **factory)


def recurrent(kind: type[nn.RNNBase], hidden: int = D, **options: Any) -> Callable[..., nn.Module]:
    return lambda **factory: RecurrentCell(kind(D, hidden, **options, **factory))


CELLS = {
    "attention": attention(),
    "attention, inputs": attention(input_dim=WIDTH),
    "attention, 2 heads": attention(heads=2),
    "attention, 4 heads, inputs": attention(heads=4, input_dim=WIDTH),
    "rnn": recurrent(nn.RNN),
    "rnn, relu, 2 layers": recurrent(nn.RNN, nonlinearity="relu", num_layers=2),
    "rnn, 3 layers, no bias": recurrent(nn.RNN, num_layers=3, bias=False, batch_first=True),
    "gru": recurrent(nn.GRU, batch_first=True),
    "gru, 2 layers": recurrent(nn.GRU, num_layers=2),
    "gru, no bias": recurrent(nn.GRU, bias=False),
    "lstm": recurrent(nn.LSTM),
    "lstm, 2 layers, no bias": recurrent(nn.LSTM, num_layers=2, bias=False),
    "lstm, projected": recurrent(nn.LSTM, hidden=12, proj_size=D),
    "lstm, projected, 2 layers": recurrent(nn.LSTM, hidden=9, proj_size=D, num_layers=2),
}
every_cell = pytest.mark.parametrize("make", CELLS.values(), ids=CELLS.keys())


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 steps, so that few steps cross several of them; the same numbers every time."""
    torch.manual_seed(0)
    monkeypatch.setattr(attention_scratch, "_BLOCK_MIN", 4)
    monkeypatch.setattr(attention_scratch, "_BLOCK_MAX", 4)
    monkeypatch.setattr(recurrent_backward, "_BLOCK", 4)


def plain(cell: nn.Module, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
    memory = start
    for i in range(steps):
        slot = cell(memory) if inputs is None else cell(memory, inputs[:, i])
        memory = torch.cat([memory, slot.unsqueeze(1)], dim=1)
    return memory


def arguments(
    cell: nn.Module, steps: int, k0: int = 1, batch: int = B
) -> tuple[Tensor, int, Tensor | None]:
    like = next(cell.parameters())
    options: dict[str, Any] = {"dtype": like.dtype, "device": like.device, "requires_grad": True}
    start = torch.randn(batch, k0, D, **options)
    takes_inputs = getattr(cell, "input_dim", None) is not None
    return start, steps, torch.randn(batch, steps, WIDTH, **options) if takes_inputs else None


def everything(
    cell: nn.Module, rollout: Callable[..., Tensor], args: Sequence[Any]
) -> list[Tensor]:
    """The memory, and the gradients of everything that requires grad from a fixed one of it."""
    memory = rollout(cell, *args)
    leaves = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    leaves += [parameter for parameter in cell.parameters() if parameter.requires_grad]
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(memory.shape, generator=generator, dtype=torch.float64).to(memory)
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    return [memory.detach(), *torch.autograd.grad(memory, leaves, grad, **options)]


def compare(cell: nn.Module, args: Sequence[Any]) -> None:
    """Values and all gradients of the fast rollout are those of the plain one, in float64."""
    fast = everything(cell, type(cell).fast_rollout, args)
    for got, want in zip(fast, everything(cell, plain, args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


# PyTorch's own remark on the plain form of a projected LSTM in float32.
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@every_cell
class TestAgainstCat:
    @pytest.mark.parametrize("k0", [1, 5])
    @pytest.mark.parametrize("steps", [1, 4, 5, 11])
    def test_values_and_gradients(
        self, make: Callable[..., nn.Module], steps: int, k0: int, device: torch.device
    ) -> None:
        cell = make(dtype=torch.float64, device=device)
        compare(cell, arguments(cell, steps, k0))

    def test_no_step(self, make: Callable[..., nn.Module], device: torch.device) -> None:
        cell = make(dtype=torch.float64, device=device)
        start, _, inputs = arguments(cell, 0, 3)
        memory = cell.fast_rollout(start, 0, inputs)
        assert torch.equal(memory, start)
        (grad,) = torch.autograd.grad(memory.square().sum(), start)
        assert torch.equal(grad, 2 * start)

    def test_no_row(self, make: Callable[..., nn.Module], device: torch.device) -> None:
        cell = make(dtype=torch.float64, device=device)
        memory = cell.fast_rollout(*arguments(cell, 6, batch=0))
        assert memory.shape == (0, 7, D)
        memory.sum().backward()
        assert all(not parameter.grad.any() for parameter in cell.parameters())

    def test_one_row(self, make: Callable[..., nn.Module], device: torch.device) -> None:
        cell = make(dtype=torch.float64, device=device)
        compare(cell, arguments(cell, 6, batch=1))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_as_accurate_as_plain(
        self, make: Callable[..., nn.Module], dtype: torch.dtype, device: torch.device
    ) -> None:
        """Farther from the float64 results than the plain form by no more than rounding."""
        cell = make(dtype=dtype, device=device)
        args = arguments(cell, 6, 2)
        exact_cell = make(dtype=torch.float64, device=device)
        exact_cell.load_state_dict(cell.state_dict())
        exact_args = [
            arg.detach().double().requires_grad_() if isinstance(arg, Tensor) else arg
            for arg in args
        ]
        exact = everything(exact_cell, plain, exact_args)
        fast = everything(cell, type(cell).fast_rollout, args)
        for got, usual, want in zip(fast, everything(cell, plain, args), exact, strict=True):
            slack = 8 * torch.finfo(dtype).eps * want.norm()
            assert (got - want).norm() <= 2 * (usual - want).norm() + slack

    def test_start_not_contiguous(
        self, make: Callable[..., nn.Module], device: torch.device
    ) -> None:
        cell = make(dtype=torch.float64, device=device)
        _, steps, inputs = arguments(cell, 6)
        start = torch.randn(3, D, B, dtype=torch.float64, device=device).permute(2, 0, 1)
        if inputs is not None:
            inputs = inputs.detach().transpose(0, 1).contiguous().transpose(0, 1)
        compare(cell, (start.requires_grad_(), steps, inputs))

    def test_only_some_need_gradients(
        self, make: Callable[..., nn.Module], device: torch.device
    ) -> None:
        cell = make(dtype=torch.float64, device=device)
        for parameter in list(cell.parameters())[::2]:
            parameter.requires_grad_(False)
        start, steps, inputs = arguments(cell, 6)
        compare(cell, (start.detach(), steps, inputs))

    def test_under_inference_mode(
        self, make: Callable[..., nn.Module], device: torch.device
    ) -> None:
        cell = make(dtype=torch.float64, device=device)
        args = arguments(cell, 6)
        with torch.inference_mode():
            memory = cell.fast_rollout(*args)
        torch.testing.assert_close(memory, plain(cell, *args).detach(), rtol=1e-9, atol=1e-9)

    def test_parameters_from_elsewhere(
        self, make: Callable[..., nn.Module], device: torch.device
    ) -> None:
        cell = make(dtype=torch.float64, device=device)
        other = {name: torch.randn_like(weight) / 4 for name, weight in cell.named_parameters()}
        start, *rest = arguments(cell, 6)
        through = memmodel.MemoryNetwork(cell)
        parameters = {f"cell.{name}": weight for name, weight in other.items()}
        memory = torch.func.functional_call(through, parameters, (start, *rest))
        cell.load_state_dict(other)
        torch.testing.assert_close(memory, plain(cell, start, *rest), rtol=1e-9, atol=1e-9)

    def test_backward_under_autocast(
        self, make: Callable[..., nn.Module], device: torch.device
    ) -> None:
        cell = make(device=device)
        start, *rest = arguments(cell, 9)
        loss = cell.fast_rollout(start, *rest).square().sum()
        parameters = list(cell.parameters())
        expected = torch.autograd.grad(loss, parameters, retain_graph=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            actual = torch.autograd.grad(loss, parameters)
        torch.testing.assert_close(actual, expected)

    def test_second_order_is_refused(
        self, make: Callable[..., nn.Module], device: torch.device
    ) -> None:
        cell = make(dtype=torch.float64, device=device)
        start, *rest = arguments(cell, 3)
        (grad,) = torch.autograd.grad(
            cell.fast_rollout(start, *rest).square().sum(), start, create_graph=True
        )
        with pytest.raises(RuntimeError, match="recompute=False"):
            grad.sum().backward()

    def test_memory_is_linear(self, make: Callable[..., nn.Module], device: torch.device) -> None:
        """Twice the steps, at most 2.1 times the bytes alive at any time, saved ones included."""
        cell = make(dtype=torch.float64, device=device)
        peaks = []
        for steps in (64, 128, 256):
            args = arguments(cell, steps)
            with LiveBytes() as live:
                cell.fast_rollout(*args)[:, -1].sum().backward()
            peaks.append(live.peak)
        assert all(after <= 2.1 * before for before, after in pairwise(peaks)), peaks


class LiveBytes(TorchDispatchMode):
    """Bytes of tensors made under it and alive at the same time, counted at every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._live[storage._cdata] = storage._weak_ref(), storage.nbytes()
        self._live = {
            key: (ref, size)
            for key, (ref, size) in self._live.items()
            if not torch.UntypedStorage._expired(ref)
        }
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result


def is_dispatched_to(cell: nn.Module, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether ``memmodel.rollout`` runs the cell's fast rollout; its numbers are checked anyway."""
    calls = []
    fast = type(cell).fast_rollout
    monkeypatch.setattr(type(cell), "fast_rollout", lambda *args: calls.append(1) or fast(*args))
    args = arguments(cell, 5)
    expected = plain(cell, *args)
    torch.testing.assert_close(memmodel.rollout(cell, *args), expected, rtol=1e-6, atol=1e-6)
    return bool(calls)


class TestWhenItApplies:
    def test_as_built(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert is_dispatched_to(AttentionCell(D), monkeypatch)
        assert is_dispatched_to(RecurrentCell(nn.GRU(D, D)), monkeypatch)

    def test_parametrized(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cell = AttentionCell(D, dtype=torch.float64)
        nn.utils.parametrizations.weight_norm(cell.output)
        assert is_dispatched_to(cell, monkeypatch)
        compare(cell, arguments(cell, 6))

    def test_tied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cell = AttentionCell(D, dtype=torch.float64)
        cell.query.weight = cell.output.weight
        assert is_dispatched_to(cell, monkeypatch)
        compare(cell, arguments(cell, 6))

    def test_not_with_a_hook(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cell = AttentionCell(D)
        cell.query.register_forward_hook(lambda module, args, output: 2 * output)
        assert not is_dispatched_to(cell, monkeypatch)

    def test_not_with_a_replaced_layer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Doubled(nn.Linear):
            def forward(self, input: Tensor) -> Tensor:
                return 2 * super().forward(input)

        cell = AttentionCell(D)
        cell.output = Doubled(D, D)
        assert not is_dispatched_to(cell, monkeypatch)

    def test_not_with_dropout_in_training(self) -> None:
        cell = RecurrentCell(nn.GRU(D, D, num_layers=2, dropout=0.5))
        assert not has_fast_path(cell)
        assert has_fast_path(cell.eval())

    def test_not_under_autocast(self) -> None:
        cell = AttentionCell(D)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not has_fast_path(cell)
        assert has_fast_path(cell)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"start": torch.zeros(2, 1, D + 1)}, ValueError, "start must be"),
        ({"start": torch.zeros(2, 1, D, dtype=torch.float64)}, TypeError, "start must have"),
        ({"start": torch.zeros(2, 1, D, dtype=torch.complex64)}, TypeError, "start must have"),
        ({"inputs": None}, ValueError, "inputs must be"),
        ({"inputs": torch.zeros(2, 4, WIDTH + 1)}, ValueError, "inputs must be"),
    ],
)
def test_misuse(change: dict[str, Any], error: type[Exception], message: str) -> None:
    args = {"start": torch.zeros(2, 1, D), "steps": 4, "inputs": torch.zeros(2, 4, WIDTH), **change}
    with pytest.raises(error, match=message):
        AttentionCell(D, input_dim=WIDTH).fast_rollout(**args)


def test_complex_parameters_are_refused() -> None:
    cell = AttentionCell(D, dtype=torch.complex64)
    with pytest.raises(TypeError, match="real floating point"):
        cell.fast_rollout(torch.zeros(2, 1, D, dtype=torch.complex64), 3)


@pytest.mark.parametrize(
    "cell",
    [AttentionCell(D, heads=2, input_dim=WIDTH), RecurrentCell(nn.GRU(D, D))],
    ids=["attention", "recurrent"],
)
def test_compiled_with_fullgraph(cell: nn.Module) -> None:
    """One op, whatever the steps: no recompilation after sizes have changed once."""
    network = memmodel.MemoryNetwork(cell)
    compiled = torch.compile(network, fullgraph=True)
    sizes = [(5, 1, 2), (9, 2, 3), (40, 3, 4), (300, 4, 5)]
    for i, (steps, k0, batch) in enumerate(sizes):
        args = arguments(cell, steps, k0, batch)
        grads = []
        with torch._dynamo.config.patch(error_on_recompile=i > 1):
            for run in (network, compiled):
                memory = run(*args)
                wanted = [args[0], *cell.parameters()]
                grads.append([memory, *torch.autograd.grad(memory.square().mean(), wanted)])
        for got, expected in zip(*grads, strict=True):
            torch.testing.assert_close(got, expected)
