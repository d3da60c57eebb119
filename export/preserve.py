"""Leave a network as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def preserved(network: nn.Module) -> Iterator[None]:
    """Put ``network`` in eval mode without grad; restore modes, buffers and RNG afterwards.

    Buffers are restored in place, so that whoever holds one keeps it.

    Args:
        network: the network to run.
    """
    modes = [(module, module.training) for module in network.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    devices = {p.device for p in network.parameters() if p.device.type != "cpu"}
    kind = next(iter(devices)).type if devices else "cuda"
    with torch.random.fork_rng([d.index or 0 for d in devices], device_type=kind), torch.no_grad():
        network.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
            for buffer, value in buffers:
                buffer.copy_(value)
