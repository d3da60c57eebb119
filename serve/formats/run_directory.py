"""Saved runs, on eager torch."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memmodel._rollout import rollout
from memmodel.network import MemoryNetwork
from memmodel.serve.formats.model import Stream
from memmodel.serve.formats.torch_device import choose_device, to_array, to_tensor
from memmodel.serve.formats.torch_prefix import TorchPrefixStream
from memmodel.serve.signature import Array, Arrays, Signature, numpy_dtype


class RunDirectory:
    """Runs the network that ``MemoryNetwork.save`` wrote into a directory.

    Args:
        path: the directory.
        device: "auto", "cpu", "cuda" or "cuda:N".
        threads: CPU threads for one call.
    """

    def __init__(self, path: Path, device: str, threads: int | None) -> None:
        network = MemoryNetwork.load(path)
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
    """What can be told from the network; its own errors tell the rest."""
    cell = network.cell
    dtype = next((p.dtype for p in network.parameters()), torch.get_default_dtype())
    slot_dim = getattr(cell, "slot_dim", None)
    if slot_dim is None and hasattr(cell, "rnn"):
        slot_dim = getattr(cell.rnn, "input_size", None)
    input_dim = getattr(cell, "input_dim", None)
    return Signature(
        dtype=numpy_dtype(str(dtype).removeprefix("torch.")),
        slot_shape=None if slot_dim is None else (slot_dim,),
        input_shape=None if input_dim is None else (input_dim,),
        takes_inputs=input_dim is not None if slot_dim is not None else None,
        has_output=network.head is not None,
    )
