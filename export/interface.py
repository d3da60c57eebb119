"""What a network takes and gives, learnt from the cell's spec or from the caller's example."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from memmodel.export.metadata import TensorSpec
from memmodel.network import MemoryNetwork
from memmodel.spec import SlotSpec, spec_of

# Sizes to trace with: all different and none is 0 or 1, which torch.export would specialise on.
EXAMPLE_BATCH, EXAMPLE_SLOTS, EXAMPLE_STEPS = 3, 5, 4

_DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
}


def dtype_name(dtype: torch.dtype) -> str:
    """Name of ``dtype`` in metadata.

    Raises:
        ValueError: artifacts cannot hold such a tensor.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {sorted(_DTYPES.values())}, got {dtype}")
    return _DTYPES[dtype]


@dataclass(frozen=True)
class Interface:
    """Shapes and dtypes of a network, and a source of values to run it on.

    Attributes:
        slots: slots to draw from, ``(n, *slot)``.
        inputs: per-step inputs to draw from, ``(n, *input)``; None where the cell takes none.
        output: one step's output of the head, without the batch; None without a head.
    """

    slots: Tensor
    inputs: Tensor | None
    output: Tensor | None

    @property
    def slot_shape(self) -> tuple[int, ...]:
        """Shape of one slot."""
        return tuple(self.slots.shape[1:])

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Shape of one step's input."""
        return None if self.inputs is None else tuple(self.inputs.shape[1:])

    @property
    def dtype(self) -> str:
        """Name of the memory's dtype."""
        return dtype_name(self.slots.dtype)

    def draw(self, batch: int, k0: int, steps: int) -> tuple[Tensor, Tensor | None]:
        """Draw ``start (batch, k0, *slot)`` and ``inputs (batch, steps, *input)``."""
        start = _draw(self.slots, batch, k0)
        return start, None if self.inputs is None else _draw(self.inputs, batch, steps)

    def slot_spec(self, name: str, *lead: str) -> TensorSpec:
        """Spec of slots with the leading dimensions ``lead``."""
        return TensorSpec(name, self.dtype, (*lead, *self.slot_shape))

    def input_specs(self, name: str, *lead: str) -> tuple[TensorSpec, ...]:
        """Spec of the cell's input; empty where it takes none."""
        if self.inputs is None:
            return ()
        return (TensorSpec(name, dtype_name(self.inputs.dtype), (*lead, *self.inputs.shape[1:])),)

    def output_specs(self, *lead: str) -> tuple[TensorSpec, ...]:
        """Spec of the head's output; empty where there is no head."""
        if self.output is None:
            return ()
        return (TensorSpec("output", dtype_name(self.output.dtype), (*lead, *self.output.shape)),)


def interface_of(network: MemoryNetwork, start: Tensor | None, inputs: Tensor | None) -> Interface:
    """Learn what ``network`` takes and gives.

    Args:
        network: in eval mode.
        start: example ``(B, k0, *slot)``; may be None where the cell has a ``spec()``.
        inputs: example ``(B, steps, *input)``; may be None where the cell takes none, or has a
            ``spec()``.

    Raises:
        TypeError: ``network`` is no :class:`memmodel.MemoryNetwork`.
        ValueError: an example is missing, its shape is wrong, or the cell's ``spec()`` is.
    """
    if not isinstance(network, MemoryNetwork):
        raise TypeError(f"network must be a MemoryNetwork, got {type(network).__name__}")
    slots = _flatten(start, "start") if start is not None else _known_slots(network)
    values = _flatten(inputs, "inputs") if inputs is not None else _known_inputs(network)
    interface = Interface(slots, values, None)
    _check_spec(network, interface)
    if network.head is None:
        return interface
    start, inputs = interface.draw(EXAMPLE_BATCH, EXAMPLE_SLOTS, EXAMPLE_STEPS)
    output = network(start, EXAMPLE_STEPS, inputs)
    if output.shape[:2] != (EXAMPLE_BATCH, EXAMPLE_STEPS):
        raise ValueError(
            f"head must give (B, steps, ...) = ({EXAMPLE_BATCH}, {EXAMPLE_STEPS}, ...), "
            f"got {tuple(output.shape)}"
        )
    return Interface(slots, values, output[0, 0])


def _flatten(example: Tensor, name: str) -> Tensor:
    if example.ndim < 2 or 0 in example.shape[:2]:
        raise ValueError(
            f"{name} must be an example (B, {'k0' if name == 'start' else 'steps'}, ...) "
            f"with at least one row and slot, got shape {tuple(example.shape)}"
        )
    return example.detach().flatten(0, 1)


def _known_slots(network: MemoryNetwork) -> Tensor:
    spec = spec_of(network.cell)
    if spec is None:
        raise ValueError(
            f"start must be given, an example (B, k0, *slot), or {type(network.cell).__name__} "
            "have a method spec() that tells the shape of its slots"
        )
    return _made_up(spec.slot, "slot", network)


def _known_inputs(network: MemoryNetwork) -> Tensor | None:
    spec = spec_of(network.cell)
    if spec is None or spec.inputs is None:
        return None
    return _made_up(spec.inputs, "inputs", network)


def _made_up(spec: SlotSpec, name: str, network: MemoryNetwork) -> Tensor:
    """Random values of the shape and dtype that the cell's spec tells."""
    if spec.dtype is None or not spec.dtype.is_floating_point:
        raise ValueError(
            f"{type(network.cell).__name__}.spec() must tell floating-point {name} to be "
            f"exported, got {spec}"
        )
    device = next((p.device for p in network.parameters()), None)
    return torch.randn(64, *spec.shape, dtype=spec.dtype, device=device)


def _check_spec(network: MemoryNetwork, interface: Interface) -> None:
    """Run the cell once on what its spec tells.

    Raises:
        ValueError: it does not take that, or makes another slot.
    """
    if spec_of(network.cell) is None:
        return
    prefix, inputs = interface.draw(EXAMPLE_BATCH, EXAMPLE_SLOTS, 1)
    takes = f"prefix {tuple(prefix.shape)}"
    takes += "" if inputs is None else f" and input {tuple(inputs[:, 0].shape)}"
    try:
        with warnings.catch_warnings():  # whoever runs the network sees them
            warnings.simplefilter("ignore")
            slot = network.cell(prefix) if inputs is None else network.cell(prefix, inputs[:, 0])
    except Exception as error:  # the cell is the user's code
        raise ValueError(
            f"{type(network.cell).__name__}.spec() tells {takes}, but the cell fails on it: "
            f"{type(error).__name__}: {error}"
        ) from error
    if slot.shape != prefix[:, 0].shape:
        raise ValueError(
            f"{type(network.cell).__name__}.spec() tells slots (B, *slot) = "
            f"{tuple(prefix[:, 0].shape)}, but the cell makes {tuple(slot.shape)}"
        )


def _draw(source: Tensor, batch: int, length: int) -> Tensor:
    rows = torch.randint(len(source), (batch, length), device=source.device)
    return source[rows]
