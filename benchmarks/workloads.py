"""The workloads that every strategy runs: shapes, weights and data, in NumPy only.

Forward and backward of a rollout that fills N slots from one, with the loss on the last slot:
``loss = sum(memory[:, -1] * loss_weights)``, float32.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Workload:
    """Shapes of a rollout: memory ``(batch, slots, width)``, of which the first slot is given."""

    cell: Literal["attention", "rnn"]
    batch: int
    width: int
    slots: int

    @property
    def steps(self) -> int:
        return self.slots - 1


WORKLOADS = {
    "W1": Workload("attention", batch=16, width=128, slots=512),
    "W2": Workload("attention", batch=8, width=64, slots=256),
    "W3": Workload("attention", batch=32, width=256, slots=256),
    "W4": Workload("attention", batch=4, width=128, slots=2048),
    "R1": Workload("rnn", batch=16, width=64, slots=128),
    # Compilation time, at two lengths.
    "C32": Workload("attention", batch=2, width=32, slots=33),
    "C4096": Workload("attention", batch=2, width=32, slots=4097),
}


def find(name: str) -> Workload:
    """The workload called ``name``; ``"W1*2"`` has twice its slots, ``"W1/8"`` an eighth."""
    parts = re.fullmatch(r"(\w+)(?:([*/])(\d+))?", name)
    if parts is None or parts[1] not in WORKLOADS:
        raise ValueError(
            f"workload must be one of {', '.join(WORKLOADS)}, perhaps followed by *n or /n, "
            f"got {name!r}"
        )
    workload, operator, factor = WORKLOADS[parts[1]], parts[2], int(parts[3] or 1)
    slots = workload.slots // factor if operator == "/" else workload.slots * factor
    return replace(workload, slots=slots)


@dataclass(frozen=True)
class Data:
    """Values of a workload.

    Args:
        start: the first slot, ``(B, 1, D)``.
        loss_weights: weights of the last slot's components in the loss, ``(B, D)``.
        parameters: by the names of :class:`memmodel.AttentionCell` or ``nn.RNN``, the latter with
            the prefix ``rnn.``; weights are ``(out, in)`` as in ``nn.Linear``.
    """

    start: np.ndarray
    loss_weights: np.ndarray
    parameters: dict[str, np.ndarray]


def make_data(workload: Workload) -> Data:
    """Equal values in every process and framework."""
    random = np.random.default_rng(0)
    D = workload.width
    if workload.cell == "attention":
        shapes = {"query": (D, D), "controller": (D, 2 * D), "output": (D, D)}
        names = {name: (f"{name}.weight", f"{name}.bias") for name in shapes}
    else:
        shapes = {"ih": (D, D), "hh": (D, D)}
        names = {name: (f"rnn.weight_{name}_l0", f"rnn.bias_{name}_l0") for name in shapes}
    parameters = {}
    for name, (out, width) in shapes.items():
        # Half of nn.Linear's default: with the full one the dynamics amplify rounding errors over
        # hundreds of steps (1e-7 to 5e-3), and equal mathematics would not compare equal.
        bound = 0.5 * width**-0.5
        weight, bias = names[name]
        parameters[weight] = random.uniform(-bound, bound, (out, width)).astype(np.float32)
        parameters[bias] = random.uniform(-bound, bound, out).astype(np.float32)
    return Data(
        start=random.standard_normal((workload.batch, 1, D)).astype(np.float32),
        loss_weights=random.standard_normal((workload.batch, D)).astype(np.float32),
        parameters=parameters,
    )
