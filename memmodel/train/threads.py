"""How many CPU threads PyTorch uses for one operation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Use ``count`` threads inside the block; None leaves PyTorch's choice.

    Raises:
        ValueError: ``count`` is less than 1.
    """
    if count is None:
        yield
        return
    if count < 1:
        raise ValueError(f"threads must be at least 1, got {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
