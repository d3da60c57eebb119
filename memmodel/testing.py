"""One call for a test of the user's own: does a cell do what its protocol methods say?"""

import copy
import json
import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from memmodel._rollout import rollout
from memmodel._rollout.ambient import generator_state, set_generator_state
from memmodel._rollout.fast import has_fast_path
from memmodel._rollout.steps import step_inputs
from memmodel.cell import offered
from memmodel.network import MemoryNetwork
from memmodel.spec import CellSpec, SlotSpec, spec_of

__all__ = ["CellError", "check_cell"]

_TOLERANCE = 1e-9
_START = 2  # slots of a start made from the spec: more than one, so that older ones count too


class CellError(AssertionError):
    """A cell breaks rules of the protocol; the message has one line for each."""


def check_cell(
    cell: Any,
    *,
    batch: int = 3,
    steps: int = 5,
    start: Tensor | None = None,
    inputs: Tensor | None = None,
    compile: bool = False,
) -> None:
    """Check every protocol method that ``cell`` has against its ``forward``.

    All of it runs on copies in evaluation mode, in float64 but for what the spec says of dtypes;
    the cell and the random number generators stay as they are. Checked are ``spec``; that
    ``forward`` repeats itself; ``masked`` at every length; ``fast_rollout``, where it applies, and
    recomputation in backward, in values and gradients; ``config`` with ``from_config``.

    Args:
        cell: the cell.
        batch: rows of the examples that are made from ``spec()``, ≥ 2 since rows must be able to
            differ in length.
        steps: slots to write, ≥ 1.
        start: an example ``(B, k0, *slot)``, needed where the cell has no ``spec()``.
        inputs: an example ``(B, steps, *input)``, needed where the cell has no ``spec()`` and
            takes inputs.
        compile: also compile a network of the cell (``fullgraph=True``), which takes seconds.

    Raises:
        CellError: rules are broken; the message lists all of them.
        ValueError: an argument breaks a rule above.
    """
    copied = copy.deepcopy(cell)
    if isinstance(copied, nn.Module):
        copied.eval()
    device = _device(copied, start)
    state = generator_state(device)
    try:
        with torch.enable_grad():
            case = _make_case(copied, device, batch, steps, start, inputs)
            _raise_broken(case, {**_RULES, "compile": _compile} if compile else _RULES)
    finally:
        set_generator_state(device, state)


@dataclass(frozen=True)
class _Case:
    """A cell with what it is run on.

    Attributes:
        plain: a copy in its own dtype.
        cell: a copy in float64.
        spec: what the cell says, if it says anything.
        start: ``(B, k0, *slot)``.
        inputs: ``(B, steps, *input)`` or None.
        steps: slots to write.
    """

    plain: Any
    cell: Any
    spec: CellSpec | None
    start: Tensor
    inputs: Tensor | None
    steps: int

    @cached_property
    def reference(self) -> dict[str, Tensor]:
        """What calling the cell step by step gives: values and gradients, by name."""
        return self.results(lambda *arguments: _cat_loop(self.cell, *arguments))

    @property
    def memory(self) -> Tensor:
        """The memory ``(B, k0 + steps, *slot)`` that calling the cell fills."""
        return self.reference["the memory"]

    def results(self, run: Callable[..., Tensor]) -> dict[str, Tensor]:
        """The memory that ``run(start, steps, inputs)`` gives, and all gradients."""
        start, inputs = (_as_leaf(tensor) for tensor in (self.start, self.inputs))
        given = {"start": start, "inputs": inputs, **_parameters(self.cell)}
        leaves = {n: leaf for n, leaf in given.items() if leaf is not None and leaf.requires_grad}
        memory = run(start, self.steps, inputs)
        grads = _gradients(memory, list(leaves.values()))
        names = (f"the gradient of {name}" for name in leaves)
        return {"the memory": memory.detach(), **dict(zip(names, grads, strict=True))}


def _make_case(
    cell: Any,
    device: torch.device,
    batch: int,
    steps: int,
    start: Tensor | None,
    inputs: Tensor | None,
) -> _Case:
    try:
        spec = spec_of(cell)
    except Exception as error:
        raise CellError(_headline(cell, [f"spec: {_said(error)}"])) from error
    if spec is None and start is None:
        raise ValueError(f"start must be given: {type(cell).__name__} has no spec()")
    batch = batch if start is None else start.shape[0]
    steps = steps if inputs is None else inputs.shape[1]
    if batch < 2 or steps < 1:
        raise ValueError(f"batch must be at least 2 and steps at least 1, got {batch} and {steps}")
    if start is None and spec is not None:
        start = _example(spec.slot, (batch, _START), device)
    if inputs is None and spec is not None and spec.inputs is not None:
        inputs = _example(spec.inputs, (batch, steps), device)
    double = copy.deepcopy(cell)
    if isinstance(double, nn.Module):
        double.double()
    assert start is not None
    return _Case(cell, double, spec, _double(start), _double(inputs), steps)


def _raise_broken(case: _Case, rules: dict[str, "_Rule"]) -> None:
    lines: list[str] = []
    first: Exception | None = None
    for name, rule in rules.items():
        try:
            found = list(rule(case))
        except Exception as error:
            found, first = [_said(error)], first or error
        lines += [f"{name}: {line}" for line in found]
        if name == "forward" and found:
            break  # nothing to compare the others with
    if lines:
        raise CellError(_headline(case.cell, lines)) from first


def _spec(case: _Case) -> Iterator[str]:
    """Forward takes and makes what the spec says, in the dtypes that it says."""
    spec = case.spec
    if spec is None:
        return
    given = {"slot": (case.start, spec.slot), "inputs": (case.inputs, spec.inputs)}
    for name, (tensor, said) in given.items():
        shape = None if tensor is None else tuple(tensor.shape[2:])
        if shape != (said and said.shape):
            yield f"says {name} {said and said.shape}, but the example has {shape}"
    prefix = _example(spec.slot, (2, _START), case.start.device)
    inputs = spec.inputs and _example(spec.inputs, (2, 1), case.start.device)
    slot = case.plain(prefix, *step_inputs(inputs, 0))
    if (slot.shape, slot.dtype) != (prefix[:, 0].shape, prefix.dtype):
        yield (
            f"says slots {spec.slot.shape} of {spec.slot.dtype}, "
            f"but forward makes {tuple(slot.shape[1:])} of {slot.dtype}"
        )


def _config(case: _Case) -> Iterator[str]:
    """What ``from_config`` makes of ``config`` is the same cell, once it has the weights."""
    config, rebuild = offered(case.cell, "config"), offered(case.cell, "from_config")
    if config is None or rebuild is None:
        if config or rebuild:
            yield "config and from_config need each other, and the cell has only one of them"
        return
    described = json.loads(json.dumps(config()))
    fresh = rebuild(described)
    if type(fresh) is not type(case.cell):
        yield f"from_config makes a {type(fresh).__name__}"
        return
    fresh.to(case.start.device, torch.float64).eval().load_state_dict(case.cell.state_dict())
    if json.loads(json.dumps(fresh.config())) != described:
        yield "config of what from_config makes is another than the one it was made from"
    memory = _cat_loop(fresh, case.start, case.steps, case.inputs)
    yield from _differences({"the rebuilt cell": memory}, {"the rebuilt cell": case.memory})


def _forward(case: _Case) -> Iterator[str]:
    """Forward makes slots from prefixes of any length, and the same ones every time."""
    slot = case.cell(case.start, *step_inputs(case.inputs, 0))
    if slot.shape != case.start[:, 0].shape:
        yield f"makes slots {tuple(slot.shape)} from a start of {tuple(case.start.shape)}"
        return
    again = _cat_loop(case.cell, case.start, case.steps, case.inputs)
    for line in _differences({"the memory": again}, {"the memory": case.memory}):
        yield f"must repeat itself in evaluation mode, but {line}"


def _masked(case: _Case) -> Iterator[str]:
    """``masked`` gives each row what forward makes of its written slots alone."""
    masked = offered(case.cell, "masked")
    if masked is None:
        return
    memory, arguments = case.memory, step_inputs(case.inputs, 0)
    batch, capacity = memory.shape[:2]
    # (N, B, *slot): the slot that follows a prefix of each length.
    slots = torch.stack([case.cell(memory[:, : k + 1], *arguments) for k in range(capacity)])
    rows = torch.arange(batch, device=memory.device)
    for behind in (math.nan, 1e3) if memory.is_floating_point() else (0, 1):
        for shift in range(capacity):  # every row at every length, no two rows alike
            length = (rows + shift) % capacity + 1
            unwritten = torch.arange(capacity, device=memory.device) >= length[:, None]
            buffer = memory.clone()
            buffer[unwritten] = behind
            name = f"the slots of rows with lengths {length.tolist()}, {behind} behind them,"
            made, expected = masked(buffer, length, *arguments), slots[length - 1, rows]
            broken = list(_differences({name: made}, {name: expected}))
            if broken:
                yield from broken
                break  # one line for each content


def _fast_rollout(case: _Case) -> Iterator[str]:
    """``fast_rollout``, where it applies, gives values and gradients of the plain form."""
    if has_fast_path(case.cell):
        yield from _differences(case.results(case.cell.fast_rollout), case.reference)


def _recompute(case: _Case) -> Iterator[str]:
    """Backward may run forward again instead of keeping what it saved."""
    plain = _Plain(case.cell)
    results = case.results(lambda *arguments: rollout(plain, *arguments))
    yield from _differences(results, case.reference)


def _compile(case: _Case) -> Iterator[str]:
    """A network of the cell compiles without a graph break, to the same numbers."""
    network = torch.compile(MemoryNetwork(case.cell), fullgraph=True)
    yield from _differences(case.results(network), case.reference)


_Rule = Callable[[_Case], Iterator[str]]
_RULES: dict[str, _Rule] = {
    "spec": _spec,
    "forward": _forward,
    "config": _config,
    "masked": _masked,
    "fast_rollout": _fast_rollout,
    "recompute": _recompute,
}


class _Plain(nn.Module):
    """The cell without what it offers besides forward."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, *arguments: Tensor) -> Tensor:
        return self.cell(*arguments)


def _cat_loop(cell: Any, start: Tensor, steps: int, inputs: Tensor | None) -> Tensor:
    memory = start
    for i in range(steps):
        slot = cell(memory, *step_inputs(inputs, i))
        memory = torch.cat([memory, slot.unsqueeze(1)], dim=1)
    return memory


def _gradients(memory: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Gradients of a loss on every slot; zeros where it does not depend on a leaf."""
    if not memory.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    weights = torch.linspace(0.5, 1.5, memory.numel(), device=memory.device).view_as(memory)
    loss = (memory * weights.to(memory.dtype)).square().sum()
    return list(torch.autograd.grad(loss, leaves, materialize_grads=True))


def _differences(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> Iterator[str]:
    for name, right in expected.items():
        found = actual[name]
        if (found.shape, found.dtype) != (right.shape, right.dtype):
            yield (
                f"{name} must be {tuple(right.shape)} of {right.dtype} as forward has it, "
                f"got {tuple(found.shape)} of {found.dtype}"
            )
        elif right.numel():
            right, found = (t + 0 if t.dtype == torch.bool else t for t in (right, found))
            error = (found - right).abs().max().item()
            if not error <= _TOLERANCE * max(1.0, right.abs().max().item()):  # NaN, too
                yield f"{name} differ from what forward makes by {error:.2g}"


def _parameters(cell: Any) -> dict[str, Tensor]:
    return dict(cell.named_parameters()) if isinstance(cell, nn.Module) else {}


def _as_leaf(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())


def _device(cell: Any, start: Tensor | None) -> torch.device:
    own = next(iter(_parameters(cell).values()), start)
    return torch.device("cpu") if own is None else own.device


def _double(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    tensor = tensor.detach()
    return tensor.double() if tensor.is_floating_point() else tensor


def _example(leaf: SlotSpec, sizes: tuple[int, int], device: torch.device) -> Tensor:
    """Numbers of the spec's shape and dtype, the same ones every time."""
    generator, shape = torch.Generator().manual_seed(0), (*sizes, *leaf.shape)
    if leaf.dtype is not None and (leaf.dtype.is_floating_point or leaf.dtype.is_complex):
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
    else:
        numbers = torch.randint(0, 2, shape, generator=generator)
    return numbers.to(device, leaf.dtype)


def _headline(cell: Any, lines: list[str]) -> str:
    return "\n  ".join([f"{type(cell).__name__} breaks the cell protocol:", *lines])


def _said(error: Exception) -> str:
    return f"raises {type(error).__name__}: {textwrap.shorten(str(error), 300)}"
