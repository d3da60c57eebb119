"""What holds for every registered op, and that none is missed."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from op_samples import Sample, all_ops
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import memmodel

OPS = all_ops()
every_op = pytest.mark.parametrize("op", OPS)


def overload(op: str) -> Any:
    namespace, name = op.split("::")
    return getattr(getattr(torch.ops, namespace), name).default


def with_grad(sample: Sample) -> tuple[Any, ...]:
    return tuple(
        arg.detach().clone().requires_grad_() if i in sample.differentiable else arg
        for i, arg in enumerate(sample.args)
    )


def leaves_of(sample: Sample, op: Any) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """The op as a function of leaves that gradcheck can perturb: expanded ones before expansion."""
    shapes, leaves = [], []
    for i in sample.differentiable:
        leaf = sample.args[i]
        shapes.append(leaf.shape)
        for dim, stride in enumerate(leaf.stride()):
            leaf = leaf.narrow(dim, 0, min(1, leaf.shape[dim])) if stride == 0 else leaf
        leaves.append(leaf.detach().clone().requires_grad_())

    def call(*leaves: Tensor) -> Tensor:
        args = list(sample.args)
        for i, leaf, shape in zip(sample.differentiable, leaves, shapes, strict=True):
            args[i] = leaf.expand(shape)
        return op(*args)

    return call, tuple(leaves)


def test_every_registered_op_has_samples() -> None:
    front = ("memmodel.__main__", "memmodel.cli", "memmodel.export", "memmodel.serve")
    for module in pkgutil.walk_packages(memmodel.__path__, "memmodel."):
        if not module.name.startswith(front):  # the front door runs on import, or registers no op
            importlib.import_module(module.name)
    registered = {
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith("memmodel::")
    }
    assert registered == OPS.keys()


@every_op
def test_opcheck(op: str, device: torch.device) -> None:
    for sample in OPS[op](device, torch.float64):
        opcheck(overload(op), sample.args)


@every_op
def test_opcheck_with_grad(op: str, device: torch.device) -> None:
    for sample in OPS[op](device, torch.float64):
        if sample.differentiable:
            opcheck(overload(op), with_grad(sample))


@every_op
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients(op: str, dtype: torch.dtype, device: torch.device) -> None:
    for sample in OPS[op](device, dtype):
        if sample.differentiable:
            call, leaves = leaves_of(sample, overload(op))
            assert gradcheck(call, leaves, fast_mode=dtype.is_complex), sample.name
            if sample.twice:
                assert gradgradcheck(call, leaves, fast_mode=True), sample.name
