"""Run TorchScript and ``.pt2`` artifacts for the self-check."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from memmodel.export.metadata import Metadata
from memmodel.export.parity import Outputs, rollout_by_steps


def artifact_rollout(run: Callable[..., Any], metadata: Metadata) -> Callable[..., Outputs]:
    """The rollout that a loaded artifact makes, in either form.

    Args:
        run: the artifact, called with its inputs in order; returns one tensor or a tuple.
        metadata: names them.
    """

    def named(tensors: Mapping[str, Any]) -> Outputs:
        result = run(*(tensors[spec.name] for spec in metadata.inputs))
        results = (result,) if isinstance(result, Tensor) else result
        return {spec.name: t for spec, t in zip(metadata.outputs, results, strict=True)}

    if metadata.form == "step":
        return rollout_by_steps(named, "prefix", per_row=False)

    def rollout(start: Tensor, steps: int, inputs: Tensor | None) -> Outputs:
        given = {} if inputs is None else {"inputs": inputs}
        return named({"start": start, "steps": steps, **given})

    return rollout
