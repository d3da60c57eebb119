"""TorchScript files, torch.export programs and AOTInductor packages."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memmodel.export.metadata import Metadata
from memmodel.export.pt2_aot import load_package
from memmodel.export.pt2_capture import load_program
from memmodel.serve.formats.model import RolloutStream, Stream
from memmodel.serve.formats.torch_device import choose_device, to_array, to_tensor
from memmodel.serve.formats.torch_prefix import TorchPrefixStream
from memmodel.serve.signature import Array, Arrays, Signature


class _TorchFile:
    """A loaded file that is called by the names of its metadata.

    Args:
        path: the file.
        metadata: what it says about itself.
        device: "auto", "cpu", "cuda" or "cuda:N"; programs and packages run where they were
            exported for.
        threads: CPU threads for one call.
    """

    def __init__(self, path: Path, metadata: Metadata, device: str, threads: int | None) -> None:
        if metadata.format != "torchscript":
            device = _exported_for(path, metadata, device)
        self._device = choose_device(device, path.name, threads)
        self._run = _LOADERS[metadata.format](path, self._device)
        self._metadata = metadata
        self.signature = Signature.of(metadata)
        self.device = str(self._device)
        self.description = f"{path.name} ({metadata.format}, {metadata.form} form)"

    @torch.inference_mode()
    def _call(self, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
        result = self._run(*(tensors[spec.name] for spec in self._metadata.inputs))
        results = (result,) if isinstance(result, Tensor) else result
        return {spec.name: t for spec, t in zip(self._metadata.outputs, results, strict=True)}

    def _tensor(self, array: Array) -> Tensor:
        return to_tensor(array, self._device)


class TorchRollout(_TorchFile):
    """Runs a rollout-form file: one call makes all steps."""

    def rollout(self, start: Array, steps: int, inputs: Array | None) -> Arrays:
        """Write ``steps`` slots after ``start``."""
        # Programs take the number of steps as a tensor, scripts as an integer.
        count = steps if self._metadata.format == "torchscript" else torch.tensor(steps)
        given = {"start": self._tensor(start), "steps": count}
        if inputs is not None:
            given["inputs"] = self._tensor(inputs)
        return {name: to_array(tensor) for name, tensor in self._call(given).items()}

    def stream(self, batch: int) -> Stream:
        """An empty memory for ``batch`` rows."""
        return RolloutStream(self, batch)


class TorchStep(_TorchFile):
    """Runs a step-form file on prefixes of one preallocated memory."""

    def rollout(self, start: Array, steps: int, inputs: Array | None) -> Arrays:
        """Write ``steps`` slots after ``start``."""
        stream = TorchPrefixStream(self._advance, len(start), self._device)
        stream.feed(start)
        output = stream.advance(steps, inputs)
        return {"memory": stream.read(), **({} if output is None else {"output": output})}

    def stream(self, batch: int) -> Stream:
        """An empty memory for ``batch`` rows."""
        return TorchPrefixStream(self._advance, batch, self._device)

    @torch.inference_mode()
    def _advance(
        self, prefix: Tensor, steps: int, inputs: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        k = prefix.shape[1]
        memory = prefix.new_empty((len(prefix), k + steps, *prefix.shape[2:]))
        memory[:, :k] = prefix
        outputs = []
        for i in range(steps):
            given = {"prefix": memory[:, : k + i]}
            if inputs is not None:
                given["input"] = inputs[:, i]
            results = self._call(given)
            memory[:, k + i] = results["slot"]
            outputs += [results["output"]] if self.signature.has_output else []
        if not self.signature.has_output:
            return memory[:, k:], None
        return memory[:, k:], torch.stack(outputs, 1) if outputs else self._no_output(memory)

    def _no_output(self, memory: Tensor) -> Tensor:
        """The head's output of no steps, ``(B, 0, ...)``."""
        spec = next(spec for spec in self._metadata.outputs if spec.name == "output")
        shape = [size for size in spec.shape[1:] if isinstance(size, int)]
        return memory.new_empty((len(memory), 0, *shape), dtype=getattr(torch, spec.dtype))


def _exported_for(path: Path, metadata: Metadata, device: str) -> str:
    """The device a program or package was exported for, unless another is asked for."""
    own = metadata.device or "cpu"
    if device != "auto" and device.partition(":")[0] != own:
        raise ValueError(f"{path.name} was exported for {own}, got device {device!r}")
    return own if device == "auto" else device


def _load_script(path: Path, device: torch.device) -> Callable[..., Any]:
    with warnings.catch_warnings():
        # Upstream advises against the format; whoever has such a file wants to run it all the same.
        warnings.filterwarnings("ignore", "`torch.jit.load` is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", "`torch.jit.load` is deprecated", FutureWarning)
        module: Callable[..., Any] = torch.jit.load(str(path), map_location=device)
    return module


_LOADERS: dict[str, Callable[[Path, torch.device], Callable[..., Any]]] = {
    "torchscript": _load_script,
    "pt2": lambda path, device: load_program(path),
    "aoti": lambda path, device: load_package(path),
}
