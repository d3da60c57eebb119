"""Kernels of the slot-write ops, on any device: O(L) work for the write itself."""

import torch
from torch import Tensor

from memmodel.ops.rules import check_arguments, check_range, check_writable


def write(memory: Tensor, value: Tensor, index: Tensor) -> None:
    """Write ``value`` into ``memory`` in place; see :func:`memmodel.slot_write_`."""
    check_arguments(memory, value, index)
    check_writable(memory)
    if value.shape[0] == 0:
        return  # no row: an index value has nothing to be wrong about
    if torch._C._is_alias_of(value, memory):  # type: ignore[attr-defined]
        value = value.clone()  # shifted slots: they would be overwritten while being copied
    if index.device.type == "cpu":
        _write_known(memory, value, index)
    else:
        _write_unknown(memory, value, index)


def write_copy(memory: Tensor, value: Tensor, index: Tensor) -> Tensor:
    """Write ``value`` into a contiguous copy of ``memory``; see :func:`memmodel.slot_write`."""
    result = memory.clone(memory_format=torch.contiguous_format)
    write(result, value, index)
    return result


def slots_at(index: Tensor, length: int) -> Tensor:
    """Slots that a write of ``length`` slots at ``index`` covers, ``(B or 1, L)``."""
    return index.reshape(-1, 1) + torch.arange(length, device=index.device)


def _write_known(memory: Tensor, value: Tensor, index: Tensor) -> None:
    """Write where the index values can be read without waiting for a device."""
    if index.ndim == 0:
        low = high = int(index.item())
    else:
        low, high = (int(bound.item()) for bound in index.aminmax())
    length = value.shape[1]
    check_range(low, high, slots=memory.shape[1], length=length)
    if low == high:
        memory.narrow(1, low, length).copy_(value)
    else:
        _write_rows(memory, value, index)


def _write_unknown(memory: Tensor, value: Tensor, index: Tensor) -> None:
    """Write where reading the index values would make the host wait: the device checks them."""
    last = memory.shape[1] - value.shape[1]
    inside = ((index >= 0) & (index <= last)).all()
    torch._assert_async(inside, f"index must be between 0 and N - L = {last}")
    _write_rows(memory, value, index)


def _write_rows(memory: Tensor, value: Tensor, index: Tensor) -> None:
    rows = torch.arange(memory.shape[0], device=memory.device)
    if value.shape[1] == 1:
        # Serving's case; expand is free and saves building a (B, 1) grid of slots.
        memory.index_put_((rows, index.expand(rows.shape)), value.squeeze(1))
    else:
        memory.index_put_((rows.unsqueeze(1), slots_at(index, value.shape[1])), value)
