"""Compare an artifact with the network it was made from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memmodel.export.errors import ParityError
from memmodel.export.interface import Interface
from memmodel.export.metadata import Parity
from memmodel.network import MemoryNetwork

Outputs = dict[str, Tensor]
# Runs an artifact once: named tensors in, named tensors out.
Call = Callable[[Mapping[str, Tensor]], Outputs]

# Relative to the largest magnitude; a few steps of a rollout amplify rounding tenfold or so.
# float64 leaves room for constants that torch.onnx rounds to float32.
_TOLERANCE = {
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}


@dataclass(frozen=True)
class Case:
    """Sizes of one comparison."""

    batch: int
    k0: int
    steps: int


# None of them an example's size; one row and one slot are what tracing likes to specialise on.
CASES = (Case(1, 1, 1), Case(2, 3, 9), Case(5, 7, 6))


def compare(
    network: MemoryNetwork,
    interface: Interface,
    rollout: Callable[[Tensor, int, Tensor | None], Outputs],
    cases: Sequence[Case] = CASES,
) -> Parity:
    """Compare an artifact's rollouts with eager ones on random values.

    Args:
        network: in eval mode.
        interface: source of the values.
        rollout: the artifact: ``start, steps, inputs`` to ``{"memory": ..., "output": ...}``.
        cases: sizes to compare at.

    Raises:
        ParityError: with the figures, where they differ by more than the dtype's tolerance.
    """
    tolerance = _TOLERANCE[interface.slots.dtype]
    absolute = relative = 0.0
    for case in cases:
        start, inputs = interface.draw(case.batch, case.k0, case.steps)
        expected = eager(network, start, case.steps, inputs)
        try:
            got = rollout(start, case.steps, inputs)
        except Exception as error:
            raise ParityError(f"the artifact does not run at {case}: {error}") from error
        for name, value in expected.items():
            difference, ratio = _difference(name, got[name], value, case)
            absolute, relative = max(absolute, difference), max(relative, ratio)
            if not ratio <= tolerance:
                raise ParityError(
                    f"{name} differs from eager at {case}: by {difference:.3g}, "
                    f"{ratio:.3g} of its largest magnitude, allowed is {tolerance:.3g}"
                )
    sizes = tuple({"batch": c.batch, "k0": c.k0, "steps": c.steps} for c in cases)
    return Parity(absolute, relative, tolerance, sizes)


def eager(network: MemoryNetwork, start: Tensor, steps: int, inputs: Tensor | None) -> Outputs:
    """Roll the cell out in its plain form and apply the head."""
    memory = start
    for i in range(steps):
        slot = network.cell(memory) if inputs is None else network.cell(memory, inputs[:, i])
        memory = torch.cat([memory, slot.unsqueeze(1)], dim=1)
    if network.head is None:
        return {"memory": memory}
    return {"memory": memory, "output": network.head(memory[:, start.shape[1] :])}


def rollout_by_steps(call: Call, state: str, *, per_row: bool) -> Callable[..., Outputs]:
    """Make rollouts of an artifact that makes one slot at a time.

    Args:
        call: the artifact.
        state: "prefix" or "buffer".
        per_row: a buffer's ``length`` is per row.
    """

    def rollout(start: Tensor, steps: int, inputs: Tensor | None) -> Outputs:
        batch, k0 = start.shape[:2]
        # Wider than needed, and nothing but zeros where nothing is written.
        memory = start.new_zeros(batch, k0 + steps + 3, *start.shape[2:])
        memory[:, :k0] = start
        outputs = []
        for i in range(steps):
            k = k0 + i
            given = {} if inputs is None else {"input": inputs[:, i]}
            if state == "prefix":
                made = call({"prefix": memory[:, :k], **given})
                memory[:, k] = made["slot"]
            else:
                length = torch.full((batch,) if per_row else (), k)
                made = call({"memory": memory, "length": length, **given})
                memory = made["memory_out"]
                if not torch.equal(memory[:, k], made["slot"]):
                    raise ParityError("the slot written into the memory is not the one returned")
            if "output" in made:
                outputs.append(made["output"])
        result = {"memory": memory[:, : k0 + steps]}
        if outputs:
            result["output"] = torch.stack(outputs, dim=1)
        return result

    return rollout


def _difference(name: str, got: Tensor, expected: Tensor, case: Case) -> tuple[float, float]:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise ParityError(
            f"{name} is {got.dtype} {tuple(got.shape)} at {case}, "
            f"eager gives {expected.dtype} {tuple(expected.shape)}"
        )
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    if expected.numel() == 0:
        return 0.0, 0.0
    difference = float((got - expected).abs().max())
    return difference, difference / max(float(expected.abs().max()), 1e-6)
