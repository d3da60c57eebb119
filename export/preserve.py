"""Leave a network as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def preserved(network: nn.Module) -> Iterator[None]:
    """Put ``network`` in eval mode with frozen parameters; restore everything afterwards.

    What is restored: modes, ``requires_grad``, buffers (in place, so that whoever holds one keeps
    it) and random number generators. Parameters are frozen because formats store whether they
    require grad, and artifacts write in place, which autograd would refuse.

    Args:
        network: the network to run.
    """
    modes = [(module, module.training) for module in network.modules()]
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    devices = {p.device for p in network.parameters() if p.device.type != "cpu"}
    kind = next(iter(devices)).type if devices else "cuda"
    with torch.random.fork_rng([d.index or 0 for d in devices], device_type=kind), torch.no_grad():
        network.eval()
        network.requires_grad_(False)
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
            for parameter in trained:
                parameter.requires_grad_(True)
            for buffer, value in buffers:
                buffer.copy_(value)
