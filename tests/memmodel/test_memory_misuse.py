"""What SlotMemory refuses, and that nothing it accepts gives a silently wrong gradient."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from memmodel import SlotMemory


def make(slots: int = 4, **options) -> SlotMemory:
    return SlotMemory((2, slots, 3), **options)


def slot(requires_grad: bool = True) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 3, requires_grad=requires_grad)


def test_attributes() -> None:
    memory = SlotMemory((2, 4, 3), dim=-2, dtype=torch.float64, overwrite=True)
    assert (memory.dim, memory.capacity, memory.shape) == (1, 4, (2, 4, 3))
    assert (memory.dtype, memory.device, memory.overwrite) == (
        torch.float64,
        torch.device("cpu"),
        True,
    )
    assert len(memory) == 0
    memory.write(torch.zeros(2, 2, 3, dtype=torch.float64), 1)
    assert len(memory) == 3
    assert "written=3" in repr(memory)


def test_reading_unwritten_slots() -> None:
    memory = make()
    memory.append(slot())
    memory.write(slot(), 2)
    assert memory[2].shape == (2, 3)
    assert memory[0:1].shape == memory[:1].shape == (2, 1, 3)
    for read in (
        lambda: memory.read(),
        lambda: memory.read(0, 2),
        lambda: memory[1],
        lambda: memory[torch.tensor([0, 1])],
    ):
        with pytest.raises(IndexError, match=r"slot 1 has not been written .* before reading it"):
            read()
    with pytest.raises(IndexError, match="slot 3 has not been written"):
        memory.read(2, 4)
    with pytest.raises(IndexError, match="slot 99 has not been written"):
        memory[99]
    memory.write(slot(), 1)
    assert memory.read().shape == (2, 3, 3)


def test_empty_reads() -> None:
    memory = make()
    assert memory.read().shape == (2, 0, 3)
    memory.append(slot())
    assert memory.read(1).shape == (2, 0, 3)
    assert memory[torch.tensor([], dtype=torch.long)].shape == (2, 0, 3)


def test_bad_keys() -> None:
    memory = make()
    memory.append(slot())
    for key in ("a", 0.5, (0, 1), None):
        with pytest.raises(TypeError, match="indexed along its slot dim"):
            memory[key]  # type: ignore[index]
    with pytest.raises(ValueError, match="step must be 1, got 2"):
        memory[::2]
    with pytest.raises(TypeError, match=r"int64, got torch.bool"):
        memory[torch.tensor([True])]
    with pytest.raises(IndexError, match="from 0, got -1"):
        memory[torch.tensor([-1])]
    with pytest.raises(IndexError, match="0 ≤ start ≤ stop, got 1 and 0"):
        memory.read(1, 0)
    with pytest.raises(IndexError, match=r"at least -len\(memory\) = -1, got -2"):
        memory[-2]


def test_keys_as_in_pytorch() -> None:
    memory = make()
    values = torch.randn(2, 4, 3)
    memory.append(values)
    assert torch.equal(memory[-1], values[:, -1])
    assert torch.equal(memory[-3:-1], values[:, -3:-1])
    index = torch.tensor([[0, 3], [1, 1], [2, 0]])
    assert torch.equal(memory[index], values[:, index])
    assert torch.equal(memory[torch.tensor(2)], values[:, 2])
    assert [torch.equal(a, b) for a, b in zip(memory, values.unbind(1), strict=True)] == [True] * 4


def test_reads_are_views() -> None:
    memory = make()
    memory.append(slot())
    storage = memory[0].untyped_storage().data_ptr()
    memory.append(slot())
    assert memory.read().untyped_storage().data_ptr() == storage
    assert memory[1:2].untyped_storage().data_ptr() == storage


def test_writing_twice() -> None:
    memory = make()
    memory.append(torch.zeros(2, 2, 3))
    with pytest.raises(RuntimeError, match=r"slot 1 has been written.*overwrite=True"):
        memory.write(torch.zeros(2, 2, 3), 1)
    with pytest.raises(RuntimeError, match=r"make the SlotMemory with overwrite=True"):
        memory.add(slot(), 0)
    assert len(memory) == 2


def test_beyond_the_capacity() -> None:
    memory = make()
    memory.append(torch.zeros(2, 3, 3))
    with pytest.raises(
        IndexError, match=r"slots 3 to 4 .* capacity of 4: make the SlotMemory larger"
    ):
        memory.append(torch.zeros(2, 2, 3))
    with pytest.raises(IndexError, match="slots -1 to -1"):
        memory.write(slot(), -1)
    memory.append(slot())
    with pytest.raises(IndexError, match="capacity of 4"):
        memory.append(slot())


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (torch.zeros(3), ValueError, r"one slot \(2, 3\) or of L slots \(2, 'L', 3\), got \(3,\)"),
        (torch.zeros(2, 1, 4), ValueError, r"got \(2, 1, 4\)"),
        (torch.zeros(1, 3), ValueError, r"got \(1, 3\)"),
        (torch.zeros(2, 3).double(), TypeError, "float32, got torch.float64"),
        (torch.zeros(2, 3, device="meta"), ValueError, "device cpu, got meta"),
    ],
)
def test_bad_values(value: Tensor, error: type[Exception], message: str) -> None:
    memory = make(overwrite=True)
    memory.append(slot())
    for use in (memory.append, lambda v: memory.write(v, 0), lambda v: memory.add(v, 0)):
        with pytest.raises(error, match=message):
            use(value)


def test_bad_shapes() -> None:
    with pytest.raises(IndexError, match=r"dim must be a dimension of shape \(2,\), got 1"):
        SlotMemory((2,))
    with pytest.raises(ValueError, match="at least 0"):
        SlotMemory((2, -1))
    with pytest.raises(TypeError):
        SlotMemory((2, 1.5))  # type: ignore[list-item]


def test_modifying_a_view_in_place() -> None:
    memory = make()
    memory.append(slot())
    with pytest.raises(RuntimeError, match="modified inplace"):
        memory.read().mul_(2)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_modifying_a_view_without_grad(requires_grad: bool) -> None:
    memory = make()
    memory.append(slot(requires_grad))
    view = memory.read()
    out = view * slot()
    with torch.no_grad():
        view.mul_(2)
    for use in (memory.read, lambda: memory[0], lambda: memory.append(slot())):
        with pytest.raises(RuntimeError, match=r"modified in place.*clone\(\)"):
            use()
    with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
        out.sum().backward()


def test_old_graph_after_reset_stays_right() -> None:
    x = slot()
    memory = make()
    memory.append(x)
    old = (memory.read() ** 2).sum()
    kept = memory.read()
    memory.reset()
    assert len(memory) == 0
    with pytest.raises(IndexError, match="slot 0 has not been written"):
        memory[0]
    memory.append(torch.full((2, 3), 7.0))
    torch.testing.assert_close(kept[:, 0], x)
    torch.testing.assert_close(torch.autograd.grad(old, x)[0], 2 * x)


def test_views_kept_outside_autograd_keep_their_content() -> None:
    """Write-once slots never change, so detached views and saved ones stay right."""
    x, w = slot(), torch.ones(3, requires_grad=True)
    memory = make()
    memory.append(x)
    detached = memory.read().detach()
    out = (detached * w).sum()
    memory.append(x * 2)
    memory.detach_()
    memory.append(x * 3)
    torch.testing.assert_close(torch.autograd.grad(out, w)[0], x.detach().sum(0))


def test_modified_value_after_append() -> None:
    """The memory holds a copy: changing the value afterwards is the caller's business."""
    x = slot()
    value = x * 1
    memory = make()
    memory.append(value)
    value.add_(1)
    memory.append(value)
    torch.testing.assert_close(memory[0], x)
    (memory[0] + 10 * memory[1]).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 11.0))


def test_modified_index_is_caught() -> None:
    memory = make()
    memory.append(slot())
    memory.append(slot() * 2)
    index = torch.tensor([0, 1])
    out = memory[index].sum()
    index.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("value", [1.0, np.zeros((2, 3), np.float32)])
def test_values_that_are_no_tensors(value: object) -> None:
    with pytest.raises(TypeError, match=r"value must be a Tensor, got (float|ndarray)"):
        make().append(value)  # type: ignore[arg-type]


# torch.autograd.forward_ad itself imports what still uses it.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_is_refused() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(slot(), slot())
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            make().append(dual)
