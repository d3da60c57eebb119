"""Saved runs, on eager torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memmodel._rollout import rollout
from memmodel.network import MemoryNetwork
from memmodel.serve.formats.model import Stream
from memmodel.serve.formats.torch_device import choose_device, to_array, to_tensor
from memmodel.serve.formats.torch_prefix import TorchPrefixStream
from memmodel.serve.signature import Array, Arrays, Signature, numpy_dtype
from memmodel.spec import spec_of


class RunDirectory:
    """Runs the network that ``MemoryNetwork.save`` wrote into a directory.

    Args:
        path: the directory.
        device: "auto", "cpu", "cuda" or "cuda:N".
        threads: CPU threads for one call.
        classes: classes of the user's own that the network is made of.
    """

    def __init__(
        self, path: Path, device: str, threads: int | None, classes: Sequence[type] = ()
    ) -> None:
        network = MemoryNetwork.load(path, classes=classes)
        self._device = choose_device(device, path.name, threads)
        self._network = network.to(self._device).eval()
        self.signature = _signature(self._network)
        self.device = str(self._device)
        self.description = f"{path.name} (saved run)"

    @torch.inference_mode()
    def rollout(self, start: Array, steps: int, inputs: Array | None) -> Arrays:
        """Write ``steps`` slots after ``start``."""
        memory = rollout(self._network.cell, self._tensor(start), steps, self._tensor(inputs))
        results = {"memory": to_array(memory)}
        if self._network.head is not None:
            results["output"] = to_array(self._network.head(memory[:, start.shape[1] :]))
        return results

    def stream(self, batch: int) -> Stream:
        """An empty memory for ``batch`` rows."""
        return TorchPrefixStream(self._advance, batch, self._device)

    def _advance(
        self, prefix: Tensor, steps: int, inputs: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if steps == 1:  # reads the prefix where it is; a rollout would copy it
            arguments = () if inputs is None else (inputs[:, 0],)
            slots = self._network.cell(prefix, *arguments).unsqueeze(1)
        else:
            slots = rollout(self._network.cell, prefix, steps, inputs)[:, prefix.shape[1] :]
        return slots, None if self._network.head is None else self._network.head(slots)

    def _tensor(self, array: Array | None) -> Any:
        return None if array is None else to_tensor(array, self._device)


def _signature(network: MemoryNetwork) -> Signature:
    """What the cell's spec tells; without one, the network's own errors tell the rest."""
    spec = spec_of(network.cell)
    if spec is None:
        dtype = next((p.dtype for p in network.parameters()), torch.get_default_dtype())
        return Signature(_numpy(dtype), None, None, None, network.head is not None)
    return Signature(
        dtype=_numpy(spec.slot.dtype),
        slot_shape=spec.slot.shape,
        input_shape=None if spec.inputs is None else spec.inputs.shape,
        takes_inputs=spec.inputs is not None,
        has_output=network.head is not None,
    )


def _numpy(dtype: torch.dtype) -> np.dtype:
    return numpy_dtype(str(dtype).removeprefix("torch."))
