"""SlotMemory under every way of running backward that autograd offers."""

import copy
import pickle
import threading
from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from memmodel import SlotMemory


def make(slots: int = 6, **options) -> SlotMemory:
    return SlotMemory((2, slots, 3), dtype=torch.float64, **options)


def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    return x.requires_grad_(), w.requires_grad_()


def fill(memory: SlotMemory, x: Tensor, w: Tensor, steps: int = 5) -> SlotMemory:
    memory.append(x)
    for _ in range(steps):
        memory.append(torch.tanh((memory.read() * w).sum(1)))
    return memory


def cat_loop(x: Tensor, w: Tensor, steps: int = 5) -> Tensor:
    memory = x.unsqueeze(1)
    for _ in range(steps):
        memory = torch.cat([memory, torch.tanh((memory * w).sum(1)).unsqueeze(1)], 1)
    return memory


def assert_grads(loss: Tensor, expected: Tensor, inputs: tuple[Tensor, ...], **options) -> None:
    grads = torch.autograd.grad(loss, inputs, **options)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, inputs, retain_graph=True))


def test_repeated_backward() -> None:
    x, w = leaves()
    loss, expected = fill(make(), x, w).read().square().sum(), cat_loop(x, w).square().sum()
    for _ in range(3):
        assert_grads(loss, expected, (x, w), retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()
    grads = torch.autograd.grad(expected, (x, w))
    torch.testing.assert_close((x.grad, w.grad), tuple(2 * g for g in grads))


def test_graph_without_retain_is_freed() -> None:
    x, w = leaves()
    loss = fill(make(), x, w).read().square().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("first", ["early", "late"])
def test_losses_at_different_points(first: str) -> None:
    x, w = leaves()
    memory = make()
    early = fill(memory, x, w, 2).read().square().sum()
    for _ in range(3):
        memory.append(torch.tanh((memory.read() * w).sum(1)))
    late = memory[-1].cos().sum()
    reference = cat_loop(x, w)
    losses = {
        "early": (early, reference[:, :3].square().sum()),
        "late": (late, reference[:, -1].cos().sum()),
    }
    for name in (first, *(losses.keys() - {first})):
        assert_grads(*losses[name], (x, w), retain_graph=True)
    assert_grads(early + late, losses["early"][1] + losses["late"][1], (x, w))


def test_partial_graphs() -> None:
    x, w = leaves()
    y = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def run(memory: SlotMemory) -> tuple[Tensor, Tensor]:
        fill(memory, x, w, 2)
        memory.append(y)
        middle = memory.read()
        memory.append(middle.sum(1) * w)
        return middle, memory.read().square().sum()

    middle, loss = run(make())
    plain_middle = torch.cat([cat_loop(x, w, 2), y.unsqueeze(1)], 1)
    expected = torch.cat([plain_middle, (plain_middle.sum(1) * w).unsqueeze(1)], 1).square().sum()
    assert_grads(loss, expected, (y,), retain_graph=True)
    assert_grads(loss, expected, (w,), retain_graph=True)
    # The gradient of an intermediate read is what flows through that read alone.
    (grad,) = torch.autograd.grad(loss, middle, retain_graph=True)
    last = middle.detach().sum(1) * w.detach()
    torch.testing.assert_close(grad, (2 * last * w.detach()).unsqueeze(1).expand_as(grad))
    # The graph before the read is reachable from the read itself.
    torch.testing.assert_close(
        torch.autograd.grad(middle.sum(), (x, w, y)),
        torch.autograd.grad(plain_middle.sum(), (x, w, y)),
    )


def test_unused_reads_and_writes_get_no_gradient() -> None:
    x, w = leaves()
    memory = fill(make(), x, w, 3)
    memory.read()
    memory[2]
    memory.append(x.exp())
    loss = memory[0].square().sum()
    assert_grads(loss, x.square().sum(), (x,), retain_graph=True)
    (grad,) = torch.autograd.grad(loss, w, allow_unused=True, retain_graph=True)
    assert grad is None or not grad.any()


def test_hooks_and_retained_gradients() -> None:
    x, w = leaves()
    memory = fill(make(), x, w, 2)
    view = memory.read()
    seen: list[Tensor] = []
    view.register_hook(lambda grad: seen.append(grad.clone()) or 2 * grad)
    view.retain_grad()
    memory.append((view * w).sum(1))
    (memory[-1] * torch.ones_like(x)).sum().backward()
    torch.testing.assert_close(seen[0], w.detach().expand(2, 3, 3))
    torch.testing.assert_close(view.grad, 2 * seen[0])
    reference = cat_loop(x, w, 2)
    (expected,) = torch.autograd.grad(2 * (reference * w.detach()).sum(), x)
    torch.testing.assert_close(x.grad, expected)


def test_gradients_that_others_hold_are_not_changed() -> None:
    """Handed-out gradients are views of the buffer that later nodes go on changing."""
    x, w = leaves()
    values = [(x * (i + 1)) for i in range(4)]
    held: list[Tensor] = []
    memory = make()
    for value in values:
        value.register_hook(held.append)
        memory.append(value)
        memory.append((memory.read() * w).sum(1)) if len(memory) < 5 else None
    loss = memory.read().square().sum()
    grads = torch.autograd.grad(loss, values, retain_graph=True)
    copies = [g.clone() for g in grads]
    loss.backward()
    torch.testing.assert_close(grads, tuple(copies))
    torch.testing.assert_close(tuple(reversed(held[-4:])), tuple(copies))


def test_one_value_in_many_places() -> None:
    """Leaf, written twice and used outside: its gradient is summed, not written over."""
    x, w = leaves()
    memory = make()
    for _ in range(2):
        memory.append(x)
        memory.append(memory[0])
    loss = (memory.read().square().sum(1) * x * w).sum()
    expected = ((4 * x.square()) * x * w).sum()
    assert_grads(loss, expected, (x, w))


def test_every_token_has_one_consumer() -> None:
    """What makes adding to the buffer in place safe: token gradients are never summed or shared."""
    x, w = leaves()
    memory = make(7, overwrite=True)
    fill(memory, x, w, 4)
    memory.append(memory[torch.tensor([0, 2])].sum(1))
    memory.write(memory[1] * w, 1)
    memory.add(memory[-1], 2)
    loss = memory.read().sum() + memory[0].sum()
    consumers: Counter[tuple[object, int]] = Counter()
    todo, met = [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in met:
            continue
        met.add(node)
        for parent, output in node.next_functions:
            consumers[parent, output] += 1
            todo.append(parent)
    names = {"ReadBackward", "WriteBackward", "WriteReadBackward", "GatherBackward"}
    names |= {"RewriteBackward", "AddBackward"}
    ours = [node for node in met if node.name() in names]
    assert {node.name() for node in ours} == names
    assert all(consumers[node, 0] <= 1 for node in ours)


def test_reentrant_checkpoint_over_the_memory() -> None:
    """Its recomputation runs a backward pass of its own through a branch of the token chain.

    As with any tensor that such a function closes over, the outer pass then finds the graph freed:
    an error, or, where the graph saved nothing, the right sum.
    """
    x, w = leaves()
    memory = make()
    memory.append(x)
    memory.append(x + 1)
    out = checkpoint(lambda w: (memory.read(stop=2) * w).sum(), w, use_reentrant=True)
    memory.append(x)
    (out + memory.read().sum()).backward(retain_graph=True)
    torch.testing.assert_close(x.grad, (2 * w.detach() + 3).expand(2, 3))
    torch.testing.assert_close(w.grad, (2 * x.detach() + 1).sum(0))
    memory = make()
    memory.append(x.exp())
    out = checkpoint(lambda w: (memory.read(stop=1) * w).sum(), w, use_reentrant=True)
    with pytest.raises(RuntimeError, match="through the graph a second time"):
        (out + memory.read().sum()).backward()


def test_gradgradcheck() -> None:
    def run(x: Tensor, w: Tensor) -> Tensor:
        return fill(make(3), x, w, 2).read()

    assert torch.autograd.gradcheck(run, leaves())
    assert torch.autograd.gradgradcheck(run, leaves())


def test_third_order() -> None:
    x, w = leaves()
    grads = []
    for memory in (fill(make(3), x, w, 2).read(), cat_loop(x, w, 2)):
        (first,) = torch.autograd.grad(memory.sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        grads.append(torch.autograd.grad(second.square().sum(), (x, w)))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_graph_without_grad(mode: type) -> None:
    x, w = leaves()
    with mode():
        memory = fill(make(), x, w)
        result = memory.read()
        assert not result.requires_grad
        assert not memory[torch.tensor([0, 2])].requires_grad
        torch.testing.assert_close(result, cat_loop(x, w))


def test_reading_and_writing_constants_makes_no_graph() -> None:
    memory = make()
    memory.append(torch.ones(2, 3, dtype=torch.float64))
    assert not memory.read().requires_grad
    memory.append(leaves()[0])
    assert memory.read().requires_grad
    assert not memory[0].requires_grad


def test_no_grad_inside_a_graph() -> None:
    x, w = leaves()
    memory = fill(make(), x, w, 2)
    with torch.no_grad():
        assert not memory.read().requires_grad
        memory.append(x * 2)
    loss = memory.read().square().sum()
    assert_grads(loss, cat_loop(x, w, 2).square().sum(), (x, w))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_function_takes_a_read(reentrant: bool) -> None:
    x, w = leaves()
    memory = make()
    memory.append(x)
    for _ in range(5):
        step = checkpoint(
            lambda m: torch.tanh((m * w).sum(1)), memory.read(), use_reentrant=reentrant
        )
        memory.append(step)
    memory.read().square().sum().backward()  # reentrant checkpoints refuse autograd.grad
    expected = torch.autograd.grad(cat_loop(x, w).square().sum(), (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)


@pytest.mark.parametrize("constant_start", [False, True])
def test_checkpointed_function_reads_with_bounds(constant_start: bool) -> None:
    x, w = leaves()
    memory = make()
    memory.append(x.detach() if constant_start else x)

    def step(stop: int) -> Tensor:
        return torch.tanh((memory.read(stop=stop) * w).sum(1) + memory[0] * w)

    reference = x.unsqueeze(1)
    for i in range(5):
        memory.append(checkpoint(step, i + 1, use_reentrant=False))
        plain = torch.tanh((reference * w).sum(1) + reference[:, 0] * w)
        reference = torch.cat([reference, plain.unsqueeze(1)], 1)
    inputs = (w,) if constant_start else (x, w)
    loss, expected = memory.read().square().sum(), reference.square().sum()
    assert_grads(loss, expected, inputs, retain_graph=True)
    # The recomputation has not become part of the program.
    assert_grads(memory.read().square().sum(), expected, inputs)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda m: m.read(), "open end inside a backward pass"),
        (lambda m: m[-1], "negative index"),
        (lambda m: m.read(stop=len(m)), "len"),
        (lambda m: m.append(m.read(stop=1).sum(1)) or m.read(stop=1), "writing a SlotMemory"),
    ],
)
def test_recomputation_that_would_differ_is_refused(use, message: str) -> None:
    x, w = leaves()
    memory = fill(make(), x, w, 1)
    out = checkpoint(lambda: (use(memory) * w).sum(), use_reentrant=False)
    memory.append(x)
    with pytest.raises(RuntimeError, match=message):
        (out + memory.read().sum()).backward()


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in SqrtBackward0")
@pytest.mark.filterwarnings("ignore:Error detected in MulBackward0")
def test_anomaly_mode() -> None:
    x, w = leaves()
    expected = cat_loop(x, w).square().sum()
    with torch.autograd.detect_anomaly():
        loss = fill(make(), x, w).read().square().sum()
        assert_grads(loss, expected, (x, w))
        memory = make()
        memory.append(x)
        memory.append(torch.sqrt(memory[0] * 0))
        with pytest.raises(RuntimeError, match="MulBackward0' returned nan"):
            memory.read().sum().backward()


def test_threads_with_memories_of_their_own() -> None:
    x, w = leaves()
    expected = torch.autograd.grad(cat_loop(x, w).square().sum(), (x, w))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                loss = fill(make(), x, w).read().square().sum()
                torch.testing.assert_close(torch.autograd.grad(loss, (x, w)), expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_backward_in_another_thread() -> None:
    x, w = leaves()
    loss = fill(make(overwrite=True), x, w).read().square().sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    expected = torch.autograd.grad(cat_loop(x, w).square().sum(), (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)


def test_memory_made_inside_backward() -> None:
    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return fill(make(), x, w).read().clone()

        @staticmethod
        def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            with torch.enable_grad():
                memory = fill(make(overwrite=True), x, w).read()
            return torch.autograd.grad(memory, (x, w), grad)

    x, w = leaves()
    assert_grads(Recomputed.apply(x, w).square().sum(), cat_loop(x, w).square().sum(), (x, w))


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(copier) -> None:
    memory = fill(make(), *leaves())
    with pytest.raises(TypeError, match=r"make a new one and append\(memory.read\(\).detach\(\)\)"):
        copier(memory)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
def test_functorch_transforms_are_refused(transform) -> None:
    x, w = leaves()
    with pytest.raises(RuntimeError, match=r"torch.func transforms .* use memmodel.rollout"):
        transform(lambda x: fill(make(), x, w).read().sum())(x.detach())
