"""What a model takes and gives, and the one place where arguments are checked against it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from memmodel.export.metadata import Metadata

Array = np.ndarray
Arrays = dict[str, Array]


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of that name; "bfloat16" is the one that ``ml_dtypes`` adds."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def check_count(name: str, value: object, *, least: int) -> None:
    """Check a number of things.

    Raises:
        TypeError: it is no integer.
        ValueError: it is less than ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


@dataclass(frozen=True)
class Signature:
    """Shapes and dtype of a model, whatever its format.

    Attributes:
        dtype: dtype of every tensor.
        slot_shape: shape of a slot; None where the model cannot tell before it is run.
        input_shape: shape of one step's input; None where the model takes none.
        takes_inputs: whether the model takes inputs; None where it cannot tell.
        has_output: whether there is a head, hence an ``output``.
        fixed: sizes ("batch", "k0", "steps") that the model accepts only at one value.
    """

    dtype: np.dtype
    slot_shape: tuple[int, ...] | None
    input_shape: tuple[int, ...] | None
    takes_inputs: bool | None
    has_output: bool
    fixed: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: Metadata) -> "Signature":
        """The signature that an artifact's metadata describes."""
        return cls(
            dtype=numpy_dtype(metadata.dtype),
            slot_shape=metadata.slot_shape,
            input_shape=metadata.input_shape,
            takes_inputs=metadata.has_inputs,
            has_output=metadata.has_output,
            fixed=metadata.fixed,
        )

    def check_slots(self, slots: ArrayLike, name: str = "start") -> Array:
        """Check slots ``(B, k, *slot)``.

        Raises:
            TypeError: they are not numbers of the model's dtype and cannot be cast safely.
            ValueError: their shape is wrong.
        """
        array = self._cast(slots, name)
        expected = "(batch, k, *slot)" if self.slot_shape is None else _shape(self.slot_shape)
        rank = 3 if self.slot_shape is None else 2 + len(self.slot_shape)
        wrong = array.ndim < 2 if self.slot_shape is None else array.ndim != rank
        if wrong or (self.slot_shape is not None and array.shape[2:] != self.slot_shape):
            raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
        if min(array.shape[:2]) < 1:
            raise ValueError(f"{name} must hold rows of at least one slot, got {array.shape}")
        return array

    def check_start(self, start: ArrayLike, steps: int) -> Array:
        """Check the slots a rollout starts from, and the sizes that the model fixes.

        Raises:
            TypeError: ``steps`` is no integer, or ``start`` is of a wrong dtype.
            ValueError: an argument breaks a rule.
        """
        check_count("steps", steps, least=0)
        array = self.check_slots(start)
        sizes = {"batch": array.shape[0], "k0": array.shape[1], "steps": int(steps)}
        for name, size in sizes.items():
            if self.fixed.get(name, size) != size:
                raise ValueError(
                    f"{name} is fixed at {self.fixed[name]} in this artifact, got {size}"
                )
        return array

    def check_inputs(self, inputs: ArrayLike | None, batch: int, steps: int) -> Array | None:
        """Check per-step inputs ``(B, steps, *input)``.

        Raises:
            TypeError: they are of a wrong dtype.
            ValueError: they are missing, not taken by the model, or of a wrong shape.
        """
        if inputs is None:
            if self.takes_inputs:
                shape = _shape(self.input_shape or (), "(batch, steps")
                raise ValueError(f"inputs {shape} must be given: the cell takes an input per step")
            return None
        if self.takes_inputs is False:
            raise ValueError("inputs must not be given: the cell takes no inputs")
        array = self._cast(inputs, "inputs")
        if array.shape[:2] != (batch, steps):
            raise ValueError(f"inputs must have shape ({batch}, {steps}, ...), got {array.shape}")
        if self.input_shape is not None and array.shape[2:] != self.input_shape:
            expected = _shape(self.input_shape, f"({batch}, {steps}")
            raise ValueError(f"inputs must have shape {expected}, got {array.shape}")
        return array

    def _cast(self, value: ArrayLike, name: str) -> Array:
        array = np.asarray(value)
        if array.dtype == self.dtype:
            return array
        # Integers and other floats are what JSON and files hold; anything else is a mistake.
        if array.dtype.kind in "fiu" or array.dtype == ml_dtypes.bfloat16:
            return array.astype(self.dtype)
        raise TypeError(f"{name} must hold numbers ({self.dtype}), got dtype {array.dtype}")


def _shape(shape: tuple[int, ...], lead: str = "(batch, k") -> str:
    return ", ".join([lead, *map(str, shape)]) + ")"
