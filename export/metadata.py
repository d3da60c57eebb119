"""What an exported file says about itself, readable without torch.

Every artifact carries one JSON document, :class:`Metadata`:

====================  ==========================================================================
``.onnx``             ``metadata_props["memmodel"]``
``.pt`` TorchScript   extra file ``memmodel.json``
``.pt2``, AOT or not  extra file ``memmodel.json``
====================  ==========================================================================

**Rollout form**: one call makes all steps.

    inputs   ``start (batch, k0, *slot)``, ``steps ()`` int64 (absent where ``fixed`` has "steps"),
             ``inputs (batch, steps, *input)`` where the cell takes inputs
    outputs  ``memory (batch, k0 + steps, *slot)``, ``output (batch, steps, ...)`` where the network
             has a head

**Step form**: one call makes one slot, the caller owns the memory. ``state`` says how:

``"prefix"``, any cell: the caller passes the written slots and stores the new one itself.

    inputs   ``prefix (batch, slots, *slot)``, ``input (batch, *input)``
    outputs  ``slot (batch, *slot)``, ``output (batch, ...)``

``"buffer"``: the caller passes its whole buffer and the number of written slots in it; the graph
writes the new slot at that index. ``memory_out`` is ``memory`` with that slot written, so a runtime
that lets an input and an output share their storage (ONNX Runtime's IO binding) writes in place;
the exporter has proved that every other reader of ``memory`` runs before the write. Unwritten slots
must be finite: they are masked, and a NaN times zero is a NaN. Every call reads the capacity, not
only the written slots, so a caller keeps it close to what it needs.

    inputs   ``memory (batch, capacity, *slot)``, ``length (batch)`` int64 (``length ()`` where the
             rows must have equal lengths), ``input (batch, *input)``; 1 ≤ length < capacity
    outputs  ``memory_out (batch, capacity, *slot)``, ``slot (batch, *slot)``,
             ``output (batch, ...)``

All tensors other than ``steps`` and ``length`` have the dtype their :class:`TensorSpec` names.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

FORMAT_VERSION = 1
ONNX_KEY = "memmodel"
EXTRA_FILE = "memmodel.json"

Format = Literal["onnx", "torchscript", "pt2", "aoti"]
Form = Literal["rollout", "step"]
State = Literal["prefix", "buffer"]


class ArtifactError(ValueError):
    """A file is not an artifact of memmodel, is damaged, or needs a newer memmodel."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Attributes:
        name: its name in the graph.
        dtype: "float32", "float64", "float16", "bfloat16" or "int64".
        shape: sizes; a string names a dimension that is free at run time.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} ({', '.join(map(str, self.shape))})"


@dataclass(frozen=True)
class Parity:
    """Largest differences from eager over the self-check's cases, and what was allowed.

    Attributes:
        max_abs_error: largest absolute difference of any output.
        max_rel_error: largest difference relative to the largest magnitude of its output.
        tolerance: the allowed ``max_rel_error``.
        cases: sizes compared, such as ``{"batch": 3, "k0": 5, "steps": 7}``.
    """

    max_abs_error: float
    max_rel_error: float
    tolerance: float
    cases: tuple[Mapping[str, int], ...]


@dataclass(frozen=True)
class Metadata:
    """Describes one artifact; see the module's docstring for the two forms.

    Attributes:
        format: "onnx", "torchscript", "pt2" (torch.export) or "aoti" (AOTInductor package).
        form: "rollout" or "step".
        state: how a step takes the memory: "prefix" or "buffer"; None for a rollout.
        dtype: dtype of the memory.
        slot_shape: shape of one slot, without the batch.
        input_shape: shape of one step's input, without the batch; None where there is none.
        inputs: the graph's inputs, in order.
        outputs: the graph's outputs, in order.
        fixed: sizes fixed at export that the form leaves free elsewhere, such as ``{"steps": 24}``.
        capacity: rule for the size of the memory, in words.
        opset: ONNX opset; None for other formats.
        device: device type an "aoti" package runs on; None where any will do.
        cell: class of the cell, for people.
        parity: the self-check's result.
        versions: versions of memmodel, torch and so on at export.
        format_version: version of this document.
    """

    format: Format
    form: Form
    state: State | None
    dtype: str
    slot_shape: tuple[int, ...]
    input_shape: tuple[int, ...] | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    capacity: str
    cell: str
    fixed: Mapping[str, int] = field(default_factory=dict)
    opset: int | None = None
    device: str | None = None
    parity: Parity | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def has_inputs(self) -> bool:
        """Whether the cell takes an input at each step."""
        return self.input_shape is not None

    @property
    def has_output(self) -> bool:
        """Whether the network has a head."""
        return any(spec.name == "output" for spec in self.outputs)

    def to_json(self) -> str:
        """The document that is stored in the artifact."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str | bytes, source: str | Path) -> "Metadata":
        """Read the document stored in an artifact.

        Args:
            text: the JSON document.
            source: where it was found, for messages.

        Raises:
            ArtifactError: the document is damaged or of a newer format version.
        """
        try:
            document = json.loads(text)
            version = int(document["format_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{source}: its memmodel metadata is damaged: {error!r}") from error
        if version > FORMAT_VERSION:
            raise ArtifactError(
                f"{source} has format version {version}, this memmodel reads up to "
                f"{FORMAT_VERSION}: upgrade memmodel"
            )
        known = {f.name for f in fields(cls)}
        try:
            values = {name: document[name] for name in known & document.keys()}
            for name in ("inputs", "outputs"):
                values[name] = tuple(_spec(spec) for spec in values[name])
            values["slot_shape"] = tuple(values["slot_shape"])
            if values["input_shape"] is not None:
                values["input_shape"] = tuple(values["input_shape"])
            if values["parity"] is not None:
                values["parity"] = Parity(**values["parity"])
            if values["format"] not in get_args(Format) or values["form"] not in get_args(Form):
                raise KeyError(f"{values['format']} {values['form']}")
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ArtifactError(f"{source}: its memmodel metadata is damaged: {error!r}") from error


def _spec(document: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(document["name"], document["dtype"], tuple(document["shape"]))
