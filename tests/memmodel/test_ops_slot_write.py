"""slot_write and slot_write_: values, errors, vmap."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from op_samples import all_ops, random
from torch import Tensor
from torch.autograd import forward_ad

import memmodel
from memmodel import slot_write, slot_write_

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
]


def in_place(memory: Tensor, value: Tensor, index: Tensor) -> Tensor:
    slot_write_(memory, value, index)
    return memory


both = pytest.mark.parametrize("write", [slot_write, in_place])


def reference(memory: Tensor, value: Tensor, index: Tensor) -> Tensor:
    """TensorScatter-24's reference: one assignment per row and slot."""
    result = memory.clone()
    for row in range(memory.shape[0]):
        first = int(index if index.ndim == 0 else index[row])
        for j in range(value.shape[1]):
            result[row, first + j] = value[row, j]
    return result


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_reference(
    write: Callable[..., Tensor], dtype: torch.dtype, device: torch.device
) -> None:
    for sample in all_ops()["memmodel::slot_write"](device, dtype):
        memory, value, index = sample.args
        before, expected = memory.clone(), reference(memory, value, index)
        result = write(memory, value, index)
        assert torch.equal(result, expected), sample.name
        assert torch.equal(memory, before if write is slot_write else expected), sample.name
        assert result.is_contiguous() or write is in_place, sample.name


def test_equals_onnx_tensor_scatter() -> None:
    node = onnx.helper.make_node("TensorScatter", ["m", "v", "i"], ["out"], axis=1, mode="linear")
    types = [
        onnx.helper.make_tensor_value_info(name, kind, None)
        for name, kind in (("m", 1), ("v", 1), ("i", 7), ("out", 1))
    ]
    graph = onnx.helper.make_graph([node], "scatter", types[:3], types[3:])
    opset = onnx.helper.make_opsetid("", 24)
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[opset]))
    memory, value = torch.randn(3, 6, 2), torch.randn(3, 2, 2)
    index = torch.tensor([4, 0, 2])
    (expected,) = evaluator.run(None, {"m": memory.numpy(), "v": value.numpy(), "i": index.numpy()})
    assert np.array_equal(slot_write(memory, value, index).numpy(), expected)


def test_public_functions_are_the_registered_ops(device: torch.device) -> None:
    memory, value = torch.zeros(2, 4, 3, device=device), torch.ones(2, 1, 3, device=device)
    index = torch.tensor(2, device=device)
    written = torch.ops.memmodel.slot_write(memory, value, index)
    torch.ops.memmodel.slot_write_(memory, value, index)
    assert torch.equal(memory, written)
    assert memmodel.slot_write is slot_write


M, V, ROWS = (3, 5, 2), (3, 2, 2), (3,)
BAD = {
    "memory rank": (
        ValueError,
        r"memory must have shape \(B, N, \*slot\), got \(5,\)",
        (5,),
        V,
        ROWS,
    ),
    "value rank": (ValueError, r"value must have shape .* got \(3, 2\)", M, (3, 2), ROWS),
    "value rows": (ValueError, r"value must have shape .* got \(1, 2, 2\)", M, (1, 2, 2), ROWS),
    "value slot": (ValueError, r"value must have shape .* got \(3, 2, 1\)", M, (3, 2, 1), ROWS),
    "value too long": (ValueError, r"L ≤ N .* got \(3, 6, 2\)", M, (3, 6, 2), ROWS),
    "index rows": (ValueError, r"index must have shape \(\) or \(B,\) = \(3,\)", M, V, (2,)),
    "index rank": (ValueError, r"index must have shape .* got \(3, 1\)", M, V, (3, 1)),
}
ways = pytest.mark.parametrize("way", ["eager", "fake", "compile"])


def call(way: str, write: Callable[..., Tensor], *args: Tensor) -> Tensor:
    if way == "eager":
        return write(*args)
    if way == "fake":
        return write(*(arg.to("meta") for arg in args))
    torch._dynamo.reset()
    return torch.compile(lambda *args: write(*args), fullgraph=True, backend="eager")(*args)


def error_of(way: str, kind: type[Exception]) -> type[Exception]:
    return torch._dynamo.exc.TorchRuntimeError if way == "compile" else kind


@ways
@both
@pytest.mark.parametrize("case", BAD)
def test_wrong_shapes(way: str, write: Callable[..., Tensor], case: str) -> None:
    kind, message, *shapes = BAD[case]
    args = [torch.zeros(shape) for shape in shapes]
    with pytest.raises(error_of(way, kind), match=message):
        call(way, write, *args[:2], args[2].long())


@ways
@both
def test_wrong_dtypes(way: str, write: Callable[..., Tensor]) -> None:
    memory, value, index = torch.zeros(M), torch.zeros(V), torch.zeros(ROWS, dtype=torch.long)
    with pytest.raises(error_of(way, TypeError), match=r"value must have .* got torch.float64"):
        call(way, write, memory, value.double(), index)
    with pytest.raises(error_of(way, TypeError), match=r"index must have .* got torch.int32"):
        call(way, write, memory, value, index.int())


@pytest.mark.parametrize("way", ["eager", "compile"])
@pytest.mark.parametrize("index", [torch.tensor(1), torch.tensor([0, 1, 2])])
@pytest.mark.parametrize("stored", [(1, 5, 2), (3, 1, 2), (3, 5, 1)])
def test_expanded_memory_is_not_written_in_place(
    way: str, index: Tensor, stored: tuple[int, ...]
) -> None:
    memory, value = torch.zeros(stored).expand(M), torch.ones(3, 1, 2)
    with pytest.raises(error_of(way, ValueError), match="memory must not be expanded"):
        call(way, in_place, memory, value, index)
    assert not memory.any()
    assert slot_write(memory, value, index).sum() == value.sum()


@both
def test_wrong_devices(write: Callable[..., Tensor]) -> None:
    memory, value, index = torch.zeros(M), torch.zeros(V), torch.zeros(ROWS, dtype=torch.long)
    with pytest.raises(ValueError, match=r"value must be on memory's device meta, got cpu"):
        write(memory.to("meta"), value, index)
    with pytest.raises(ValueError, match=r"index must be on memory's device meta .* on cpu"):
        write(memory.to("meta"), value.to("meta"), index)


@both
@pytest.mark.parametrize("bad", [-1, 4, 5, 10**12])
@pytest.mark.parametrize("per_row", [False, True])
def test_index_out_of_range(write: Callable[..., Tensor], bad: int, per_row: bool) -> None:
    memory = torch.zeros(M)
    index = torch.tensor([0, bad, 3]) if per_row else torch.tensor(bad)
    with pytest.raises(
        IndexError, match=rf"index must be between 0 and N - L = 5 - 2 = 3, got {bad}"
    ):
        write(memory, torch.ones(V), index)
    assert not memory.any()


def test_in_place_refuses_to_drop_gradients() -> None:
    memory, value, index = torch.zeros(M), torch.zeros(V, requires_grad=True), torch.tensor(0)
    with pytest.raises(RuntimeError, match="slot_write_ has no gradient, but value requires grad"):
        slot_write_(memory, value, index)
    compiled = torch.compile(lambda *args: slot_write_(*args), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="slot_write_ has no gradient, but value requires grad"):
        compiled(memory, value, index)
    with torch.no_grad():
        slot_write_(memory, value + 1, index)
    assert memory.sum() == value.numel()


def test_in_place_bumps_the_version_once() -> None:
    memory = torch.zeros(M)
    for index in (torch.tensor(0), torch.tensor([0, 1, 2])):
        before = memory._version
        slot_write_(memory, torch.ones(V), index)
        assert memory._version == before + 1


@pytest.mark.parametrize("index", [torch.tensor(1), torch.tensor([1, 2])])
def test_in_place_shifts_slots_over_themselves(index: Tensor) -> None:
    memory = torch.randn(2, 6, 3)
    expected = slot_write(memory, memory[:, :4].clone(), index)
    slot_write_(memory, memory[:, :4], index)
    assert torch.equal(memory, expected)


# torch.autograd.forward_ad itself imports what still uses it.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("write", [slot_write, slot_write_])
def test_forward_mode_is_refused(write: Callable[..., Tensor]) -> None:
    with forward_ad.dual_level():
        value = forward_ad.make_dual(torch.ones(V), torch.ones(V))
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            write(torch.zeros(M), value, torch.tensor(0))


def test_in_place_in_inference_mode() -> None:
    with torch.inference_mode():
        memory = torch.zeros(M)
        slot_write_(memory, torch.ones(V), torch.tensor(3))
    assert memory.sum() == 12


@both
@pytest.mark.parametrize("in_dims", [(0, 0, None), (0, 0, 0), (2, 1, 1), (0, None, 0)])
@pytest.mark.parametrize("per_row", [False, True])
def test_vmap(
    write: Callable[..., Tensor],
    in_dims: tuple[int | None, ...],
    per_row: bool,
    device: torch.device,
) -> None:
    def make(shape: tuple[int, ...], dim: int | None) -> Tensor:
        shape = shape if dim is None else (*shape[:dim], 4, *shape[dim:])
        return random(*shape, device=device, dtype=torch.float64)

    memory, value = make(M, in_dims[0]), make(V, in_dims[1])
    if in_dims[2] == 1 and not per_row:
        in_dims = (*in_dims[:2], 0)
    index_shape = ROWS if per_row else ()
    index = make(index_shape, in_dims[2]).abs().mul(2).long().clamp(max=3)
    tensors = (memory, value, index)
    expected = torch.stack(
        [
            reference(
                *(
                    t if dim is None else t.select(dim, i)
                    for t, dim in zip(tensors, in_dims, strict=True)
                )
            )
            for i in range(4)
        ]
    )
    result = torch.vmap(write, in_dims)(*tensors)
    assert torch.equal(result, expected)


def test_vmap_unbatched_memory() -> None:
    args = torch.zeros(M), torch.rand(4, *V), torch.tensor(1)
    assert torch.vmap(slot_write, (None, 0, None))(*args).shape == (4, *M)
    with pytest.raises(RuntimeError, match="memory must be batched by vmap"):
        torch.vmap(slot_write_, (None, 0, None))(*args)


def test_gradients_through_vmap() -> None:
    memory = torch.zeros(4, *M, requires_grad=True)
    value = torch.rand(4, *V, requires_grad=True)
    index = torch.tensor([0, 3, 1])
    result = torch.vmap(slot_write, (0, 0, None))(memory, value, index)
    grads = torch.autograd.grad(result.square().sum(), (memory, value))
    assert torch.equal(grads[1], 2 * value)
    assert not grads[0].any()


def test_batched_gradients() -> None:
    memory, value = torch.zeros(M, requires_grad=True), torch.rand(V, requires_grad=True)
    index = torch.tensor([0, 3, 1])
    grads = torch.rand(4, *M)
    result = slot_write(memory, value, index)
    batched = torch.autograd.grad(result, (memory, value), grads, True, is_grads_batched=True)
    for i, grad in enumerate(grads):
        expected = torch.autograd.grad(result, (memory, value), grad, retain_graph=True)
        assert torch.equal(batched[0][i], expected[0])
        assert torch.equal(batched[1][i], expected[1])
