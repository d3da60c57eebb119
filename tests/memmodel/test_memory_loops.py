"""Loops that users write, each against plain autograd on immutable tensors, in float64.

Where a loop comes from (PyTorch issue, forum thread or project) is named beside it.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from memmodel import SlotMemory

B, D = 2, 3


class Plain:
    """SlotMemory's interface on lists and stack: plain autograd, no aliasing, O(N²)."""

    def __init__(self, shape, *, dim=1, dtype=None, device=None, overwrite=False) -> None:
        self.dim, self.ndim, self.slots = dim, len(shape), [None] * shape[dim]
        self.length = 0

    def append(self, value: Tensor) -> None:
        self.write(value, self.length)

    def write(self, value: Tensor, at: int) -> None:
        parts = value.unbind(self.dim) if value.ndim == self.ndim else [value]
        self.slots[at : at + len(parts)] = parts
        self.length = max(self.length, at + len(parts))

    def add(self, value: Tensor, at: int) -> None:
        self.slots[at] = self.slots[at] + value

    def read(self, start: int = 0, stop: int | None = None) -> Tensor:
        return torch.stack(self.slots[start : self.length if stop is None else stop], self.dim)

    def __getitem__(self, key) -> Tensor:
        if isinstance(key, Tensor):
            return self.read().index_select(self.dim, key)
        if isinstance(key, slice):
            return self.read(key.start or 0, key.stop)
        return self.slots[: self.length][key]

    def __len__(self) -> int:
        return self.length

    def detach_(self) -> None:
        self.slots = [s if s is None else s.detach() for s in self.slots]


Loop = Callable[[type, dict[str, Tensor]], Tensor]
LOOPS: dict[str, Loop] = {}


def loop(function: Loop) -> Loop:
    LOOPS[function.__name__] = function
    return function


def make(kind: type, slots: int, x: Tensor, **options):
    return kind((x.shape[0], slots, x.shape[1]), dtype=x.dtype, device=x.device, **options)


@loop
def concatenation(kind, p):
    """``memory = cat([memory, f(memory)])``."""
    memory = make(kind, 6, p["x"])
    memory.append(p["x"])
    for _ in range(5):
        memory.append(torch.tanh((memory.read() * p["w"]).sum(1)))
    return memory.read()


@loop
def two_reads_per_step(kind, p):
    """Keys and values read separately, the newest slot by index."""
    memory = make(kind, 6, p["x"])
    memory.append(p["x"])
    for _ in range(5):
        scores = torch.einsum("bkd,bd->bk", memory.read(), memory[-1] * p["w"])
        memory.append(torch.einsum("bk,bkd->bd", scores.softmax(1), memory.read()).sin())
    return memory.read(2)


@loop
def dense_blocks(kind, p):
    """``t = cat([t, layer(t)], 1)`` along channels, of several widths: DenseNet (discuss 75832)."""
    widths = [1, 2, 3]
    x = p["x"].unsqueeze(1)  # (B, channels, D)
    memory = kind((B, 1 + sum(widths), D), dtype=x.dtype, device=x.device)
    memory.append(x)
    for width in widths:
        mixed = torch.tanh(memory.read().sum(1, keepdim=True) * p["w"])
        memory.append(mixed * torch.arange(1, width + 1, device=x.device).view(1, -1, 1))
    return memory.read()


@loop
def tree_reduction(kind, p):
    """Write-once slots, then a tree of products of single slots (pytorch #74806)."""
    memory = make(kind, 7, p["x"])
    for i in range(4):
        memory.append(p["x"] + i * p["w"])
    for i in range(0, 6, 2):
        memory.append(memory[i] * memory[i + 1])
    return memory[6]


@loop
def filled_by_slices(kind, p):
    """Several ops fill slices of one output, out of order (pytorch #29378, torchrec #4433)."""
    memory = make(kind, 6, p["x"])
    x = p["x"].unsqueeze(1)
    memory.write(x.expand(-1, 2, -1).sin(), 4)
    memory.write(p["x"] * p["w"], 0)
    memory.write(torch.cat([x, x * x, x.exp()], 1), 1)
    return memory.read().cumsum(1) * memory[3].unsqueeze(1)


@loop
def chart_parser(kind, p):
    """``chart[:, o:o+L] = h`` level by level, reads by index tensor (diora #7)."""
    n = 4
    memory = make(kind, n * (n + 1) // 2, p["x"])
    scale = torch.arange(1, n + 1, device=p["x"].device).to(p["x"]).view(1, -1, 1)
    memory.write(p["x"].unsqueeze(1) * scale, 0)
    offset = [0]
    for level in range(1, n):
        offset.append(offset[-1] + n - level + 1)
        width = n - level
        left = torch.arange(width, device=p["x"].device) + offset[level - 1]
        h = torch.tanh(memory[left] * p["w"] + memory[left + 1])
        memory.write(h, offset[level])
    return memory[len(memory) - 1] + memory[torch.tensor([0, 0, 5], device=p["x"].device)].sum(1)


@loop
def nested_accumulation(kind, p):
    """Nested loops adding into zeros (pytorch #53348)."""
    memory = make(kind, 3, p["x"], overwrite=True)
    memory.write(torch.zeros(B, 3, D, dtype=p["x"].dtype, device=p["x"].device), 0)
    for i in range(3):
        for j in range(i + 1):
            memory.add(p["x"] ** (j + 1) * p["w"], i)
    return memory.read().prod(1)


@loop
def narrow_per_step(kind, p):
    """One time step read per iteration (pytorch #1788)."""
    memory = make(kind, 4, p["x"])
    memory.write(torch.stack([p["x"] * i for i in (1, 2, 3, 4)], 1), 0)
    h = p["w"].expand(B, D)
    for i in range(4):
        h = torch.tanh(h + memory[i : i + 1].squeeze(1))
    return h


@loop
def long_history(kind, p):
    """Attention over all history, losses at several steps (pytorch #7142)."""
    memory = make(kind, 5, p["x"])
    memory.append(p["x"])
    total = torch.zeros((), dtype=p["x"].dtype, device=p["x"].device)
    for i in range(4):
        weights = (memory.read() @ p["w"]).softmax(1)
        h = torch.einsum("bk,bkd->bd", weights, memory.read(0, i + 1))
        total = total + (h * p["w"]).sum()
        memory.append(h.cos())
    return memory.read() * total


@loop
def running_sums(kind, p):
    """Recurrent sums updated in place, read at each step (fast-transformers #10)."""
    memory = make(kind, 2, p["x"], overwrite=True)
    memory.write(p["x"], 0)
    memory.write(p["x"] * p["w"], 1)
    out = p["x"]
    for i in range(4):
        memory.add(torch.sin(out + i), 0)
        memory.add(out * out, 1)
        out = torch.tanh(memory[0] / (1 + memory[1] ** 2))
    return out


@loop
def partial_reset(kind, p):
    """Rollouts in which some batch rows start anew (VisFly #35)."""
    memory = make(kind, 1, p["x"], overwrite=True)
    memory.append(p["x"])
    for i in range(4):
        h = torch.tanh(memory[0] * p["w"] + i)
        done = torch.tensor([[i == 1], [i == 2]], device=h.device)
        memory.write(torch.where(done, p["x"], h), 0)
    return memory[0]


@loop
def ring(kind, p):
    """A window of three slots, rewritten oldest first, all read at each step."""
    memory = make(kind, 3, p["x"], overwrite=True)
    memory.write(torch.stack([p["x"], p["x"] * 2, p["x"] * p["w"]], 1), 0)
    total = 0
    for i in range(5):
        h = torch.tanh((memory.read() * p["w"]).sum(1) + memory[i % 3] ** 2)
        total = total + h
        memory.write(h, i % 3)
    return total * memory.read().sum(1)


@loop
def inner_training(kind, p):
    """Test-time training: a gradient step on the read content, kept in the graph (#156337)."""
    memory = make(kind, 4, p["x"])
    memory.append(p["x"])
    fast = p["w"]
    for _ in range(3):
        inner = ((memory.read() * fast).tanh() ** 2).sum()
        (grad,) = torch.autograd.grad(inner, fast, create_graph=True)
        fast = fast - 0.1 * grad
        memory.append(torch.tanh(memory[-1] * fast))
    return memory.read()


@loop
def constants_between(kind, p):
    """Some slots carry no gradient, and they come first, last and between."""
    memory = make(kind, 6, p["x"])
    memory.append(torch.ones_like(p["x"]))
    for i in range(4):
        h = (memory.read() * p["w"]).sum(1)
        memory.append(h.detach() if i % 2 else torch.tanh(h + p["x"]))
    memory.append(torch.ones_like(p["x"]))
    return memory.read() * memory[0].unsqueeze(1)


@loop
def truncated(kind, p):
    """Truncated backpropagation through time."""
    memory = make(kind, 6, p["x"])
    memory.append(p["x"])
    for i in range(5):
        if i == 3:
            memory.detach_()
        memory.append(torch.tanh((memory.read() * p["w"]).sum(1) + p["x"]))
    return memory.read()


def parameters(device: torch.device, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(B, D, dtype=dtype, device=device)
    w = torch.randn(D, dtype=dtype, device=device)
    return {"x": x.requires_grad_(), "w": w.requires_grad_()}


def gradients(function: Loop, kind: type, p: dict[str, Tensor], **options):
    result = function(kind, p)
    weights = torch.linspace(0.5, 2, result.numel(), dtype=result.real.dtype, device=result.device)
    loss = (result * weights.view(result.shape)).sum().real
    return result, torch.autograd.grad(loss, tuple(p.values()), **options)


@pytest.mark.parametrize("name", LOOPS)
def test_gradients_equal_plain_autograd(name: str, device: torch.device) -> None:
    p = parameters(device)
    expected, result = (gradients(LOOPS[name], kind, p) for kind in (Plain, SlotMemory))
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name", [n for n in LOOPS if n not in ("running_sums", "partial_reset", "ring")]
)
def test_second_order(name: str, device: torch.device) -> None:
    p = parameters(device)
    grads = []
    for kind in (Plain, SlotMemory):
        _, first = gradients(LOOPS[name], kind, p, create_graph=True)
        loss = sum((g * g).sum() for g in first)
        grads.append(torch.autograd.grad(loss, tuple(p.values())))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("name", ["concatenation", "dense_blocks", "chart_parser", "ring"])
def test_other_dtypes(name: str, dtype: torch.dtype, device: torch.device) -> None:
    p = parameters(device, dtype)
    expected, result = (gradients(LOOPS[name], kind, p) for kind in (Plain, SlotMemory))
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_slot_dims(dim: int, device: torch.device) -> None:
    """Slots along any dim, with chunks of different widths."""
    x = torch.randn(2, 3, 4, dtype=torch.float64, device=device, requires_grad=True)

    def run(memory) -> Tensor:
        memory.append(x)
        memory.append(memory.read().narrow(dim, 0, 1).sin())
        memory.append(memory.read().sum(dim) ** 2)
        return memory.read().cumsum(dim)

    shape = list(x.shape)
    shape[dim] += 2
    results = [
        run(kind(shape, dim=dim, dtype=x.dtype, device=device)) for kind in (Plain, SlotMemory)
    ]
    grads = [torch.autograd.grad((r * r).sum(), x) for r in results]
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(grads[1], grads[0])


def test_buffer_outside_the_epoch_loop(device: torch.device) -> None:
    """One memory for all epochs: no "backward a second time" (discuss 123958)."""
    p = parameters(device)
    memory = make(SlotMemory, 6, p["x"])
    _, expected = gradients(concatenation, Plain, p)

    def reuse(shape, **options) -> SlotMemory:
        memory.reset()
        return memory

    for _ in range(3):
        _, result = gradients(concatenation, reuse, p)
        torch.testing.assert_close(result, expected)
