"""SlotMemory with overwrite=True: rollback during backward, and what may go wrong around it."""

import pytest
import torch
from torch import Tensor

from memmodel import SlotMemory


def make(slots: int = 3, overwrite: bool = True) -> SlotMemory:
    return SlotMemory((2, slots, 3), dtype=torch.float64, overwrite=overwrite)


def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    return x.requires_grad_(), w.requires_grad_()


def ring(memory: SlotMemory, x: Tensor, w: Tensor, steps: int = 6) -> Tensor:
    """Read all, rewrite the oldest; every read's view is saved by the product."""
    memory.write(torch.stack([x, 2 * x, 3 * x], 1), 0)
    total = torch.zeros_like(x)
    for i in range(steps):
        h = torch.tanh((memory.read() * w).sum(1))
        total = total + h
        memory.write(h, i % 3)
    return total.sum() + memory.read().square().sum()


def plain_ring(x: Tensor, w: Tensor, steps: int = 6) -> Tensor:
    slots = [x, 2 * x, 3 * x]
    total = torch.zeros_like(x)
    for i in range(steps):
        h = torch.tanh((torch.stack(slots, 1) * w).sum(1))
        total = total + h
        slots[i % 3] = h
    return total.sum() + torch.stack(slots, 1).square().sum()


def content(memory: SlotMemory) -> Tensor:
    with torch.no_grad():
        return memory.read().clone()


def test_content_after_backward_is_that_of_forward() -> None:
    x, w = leaves()
    memory = make()
    loss = ring(memory, x, w)
    after_forward = content(memory)
    expected = torch.autograd.grad(plain_ring(x, w), (x, w))
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(loss, (x, w), retain_graph=True), expected)
        assert torch.equal(content(memory), after_forward)


def test_program_goes_on_after_backward() -> None:
    x, w = leaves()
    memory = make()
    ring(memory, x, w, 3).backward(retain_graph=True)
    memory.detach_()
    x.grad = w.grad = None
    start = content(memory)
    h = torch.tanh((memory.read() * w).sum(1))
    memory.write(h, 1)
    loss = memory.read().square().sum()
    plain = torch.tanh((start * w).sum(1))
    expected = plain.square().sum() + start[:, 0].square().sum() + start[:, 2].square().sum()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, w), torch.autograd.grad(expected, w))


@pytest.mark.parametrize("retry", [False, True])
def test_content_after_backward_that_raises_midway(retry: bool) -> None:
    x, w = leaves()
    memory = make()
    armed = True

    def fail(grad: Tensor) -> None:
        if armed:
            raise ValueError("midway")

    memory.write(torch.stack([x, 2 * x, 3 * x], 1), 0)
    total = torch.zeros_like(x)
    for i in range(6):
        h = torch.tanh((memory.read() * w).sum(1))
        if i == 2:
            h.register_hook(fail)
        total = total + h
        memory.write(h, i % 3)
    loss = total.sum() + memory.read().square().sum()
    after_forward = content(memory)
    with pytest.raises(ValueError, match="midway"):
        torch.autograd.grad(loss, (x, w), retain_graph=True)
    assert torch.equal(content(memory), after_forward)
    armed = False
    expected = torch.autograd.grad(plain_ring(x, w), (x, w))
    torch.testing.assert_close(torch.autograd.grad(loss, (x, w)), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("add", [False, True])
def test_constants_written_without_grad(mode: type, add: bool) -> None:
    """Gradients of the slot stop at new content; those of other slots go on."""
    x, w = leaves()
    memory = make(2)
    memory.append(x)
    memory.append(x * w)
    kept = (memory[0] * w).sum()
    with mode():
        (memory.add if add else memory.write)(x * 5, 0)
    loss = kept + (memory[0] * w).sum() + memory[1].sum()
    new = 5 * x.detach() + (x if add else 0)
    expected = (x * w).sum() + (new * w).sum() + (x * w).sum()
    torch.testing.assert_close(
        torch.autograd.grad(loss, (x, w)), torch.autograd.grad(expected, (x, w))
    )


def test_chunk_over_old_and_new_slots() -> None:
    x, w = leaves()
    memory = make()
    memory.write(torch.stack([x, 2 * x], 1), 0)
    before = (memory.read() ** 2).sum()
    memory.write(torch.stack([x * w, x + w], 1), 1)
    assert len(memory) == 3
    loss = before + (memory.read() * w).sum()
    expected = 5 * (x * x).sum() + ((x + x * w + x + w) * w).sum()
    torch.testing.assert_close(
        torch.autograd.grad(loss, (x, w)), torch.autograd.grad(expected, (x, w))
    )


def test_reset_of_batch_rows() -> None:
    """Rows that start anew: their content and gradient are cut, the others' go on."""
    x, w = leaves()
    memory = make(overwrite=True)
    memory.write(torch.stack([x, x * w, x + w], 1), 0)
    done = torch.tensor([True, False]).view(-1, 1, 1)
    memory.write(torch.where(done, 0.0, memory.read()), 0)
    assert not memory.read()[0].any()
    (grad,) = torch.autograd.grad(memory.read().square().sum(), x)
    plain = torch.stack([x, x * w, x + w], 1)[1:]
    torch.testing.assert_close(grad, torch.autograd.grad(plain.square().sum(), x)[0])


def test_extra_memory_is_one_slot_per_rewrite_that_was_read() -> None:
    x, _ = leaves()
    memory = make()
    memory.write(torch.stack([x, x, x], 1), 0)
    records = memory._store._journal._records
    for i in range(6):
        memory.add(x, i % 3)
        memory.write(x * i, i % 3)
    assert not records  # nothing was read in between: nothing to bring back
    for i in range(6):
        memory.read()
        memory.write(x, i % 3)
    assert [record.other.numel() for record in records] == [x.numel()] * 6


def test_without_grad_nothing_is_kept() -> None:
    memory = make()
    with torch.no_grad():
        for i in range(10):
            memory.write(torch.zeros(2, 3, dtype=torch.float64), i % 3)
            memory[i % 3]
    assert not memory._store._journal._records


def test_view_from_before_a_rewrite_is_refused() -> None:
    x, w = leaves()
    memory = make()
    memory.append(x)
    view = memory[0]
    memory.write(x * 2, 0)
    with pytest.raises(RuntimeError, match="modified inplace"):
        view * w
    detached = memory[0].detach()
    out = (detached * w).sum()
    memory.write(x * 3, 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_backward_that_would_meet_rewritten_content_is_refused() -> None:
    x, w = leaves()
    memory = make()
    memory.append(x)
    early = (memory[0] * w).sum()
    memory.write(x * 2, 0)
    late = (memory[0] * w).sum()
    with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
        torch.autograd.grad(early, w)
    # Nor does a backward pass for w alone pass the rewrite: w is not in the memory.
    with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
        torch.autograd.grad(early + late, w, retain_graph=True)
    expected = torch.autograd.grad((3 * x * w).sum(), (x, w))
    torch.testing.assert_close(torch.autograd.grad(early + late, (x, w)), expected)


def test_rewrite_after_detach_is_refused() -> None:
    x, w = leaves()
    memory = make()
    memory.append(x)
    early = (memory[0] * w).sum()
    memory.write(x * 2, 0)
    loss = early + memory[0].sum()
    memory.detach_()
    memory.read()
    memory.write(x * 3, 0)
    with pytest.raises(
        RuntimeError, match=r"changed after the forward pass .* run backward before"
    ):
        loss.backward()
    torch.testing.assert_close(memory[0], 3 * x)


def test_create_graph_through_rollback_is_refused() -> None:
    x, w = leaves()
    with pytest.raises(RuntimeError, match="create_graph=True through a SlotMemory whose slots"):
        torch.autograd.grad(ring(make(), x, w), w, create_graph=True)


def test_reads_in_a_recomputation_are_refused() -> None:
    x, w = leaves()
    memory = make()
    memory.append(x)
    out = torch.utils.checkpoint.checkpoint(lambda: (memory[0] * w).sum(), use_reentrant=False)
    memory.write(x * 2, 0)
    with pytest.raises(RuntimeError, match="reading a SlotMemory that has overwrite=True"):
        (out + memory[0].sum()).backward()


def test_add_needs_a_written_slot() -> None:
    with pytest.raises(IndexError, match="slot 0 has not been written"):
        make().add(leaves()[0], 0)


def test_same_numbers_as_write_once() -> None:
    x, w = leaves()
    losses = []
    for overwrite in (False, True):
        memory = make(4, overwrite)
        memory.append(x)
        for _ in range(3):
            memory.append(torch.tanh((memory.read() * w).sum(1)))
        losses.append(torch.autograd.grad(memory.read().square().sum(), (x, w)))
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_slots_shifted_over_themselves(add: bool, requires_grad: bool) -> None:
    values = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=requires_grad)
    memory = make(5)
    memory.append(values)
    (memory.add if add else memory.write)(memory[:4], 1)
    shifted = values[:, :4] + values[:, 1:] if add else values[:, :4]
    expected = torch.cat([values[:, :1], shifted], 1)
    assert torch.equal(memory.read(), expected)
    if requires_grad:
        actual = torch.autograd.grad(memory.read().square().sum(), values)
        torch.testing.assert_close(actual, torch.autograd.grad(expected.square().sum(), values))
