"""The public memory: checks what the user asks for, and leaves the content to a store."""

import operator
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from memmodel.memory.eager import EagerStore
from memmodel.memory.layout import Layout
from memmodel.memory.region import Region
from memmodel.memory.traced import TracedStore
from memmodel.memory.written import WrittenSlots


class SlotMemory:
    """Preallocated memory that a loop writes and reads, with exact gradients in linear memory.

    Plain PyTorch has no in-place form of ``memory = torch.cat([memory, f(memory)])``: a write into
    a buffer invalidates everything that was read from it. Here a slot is written once and can then
    be read any number of times; backward needs one gradient buffer of the memory's size, whatever
    the number of writes and reads, and no read or write costs O(N) in either direction.

        memory = SlotMemory((batch, steps + 1, width))
        memory.append(x)
        for _ in range(steps):
            memory.append(f(memory.read()))

    Reads are views: no copy, and modifying one in place raises. Under ``create_graph`` gradients
    are exact, too, at O(N) per read and write. Inside ``torch.compile`` the memory is traced as
    plain tensor operations: same numbers and gradients, without the promise on memory.

    Args:
        shape: shape of the whole memory, with the capacity N at ``dim``.
        dim: the slot dim.
        dtype: dtype of the memory; default: PyTorch's default dtype.
        device: device of the memory; default: PyTorch's default device.
        overwrite: allow slots to be rewritten (:meth:`write`, :meth:`add`). What was read before is
            kept, O(slot) per rewrite, and brought back while backward passes the rewrite; when a
            backward pass ends, also by an error, the memory holds what it held before it.

    Raises:
        IndexError: ``dim`` is not a dimension of ``shape``.
        ValueError: a size is negative.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        dim: int = 1,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        overwrite: bool = False,
    ) -> None:
        self._layout = Layout(shape, dim=dim, dtype=dtype, device=device)
        self._overwrite = overwrite
        self.reset()

    def reset(self) -> None:
        """Forget every slot and start anew, on new storage.

        What was read before stays as it was, and graphs that need it stay valid.
        """
        self._store: EagerStore | TracedStore
        if torch.compiler.is_compiling():
            self._store = TracedStore.empty(self._layout)
        else:
            self._store = EagerStore(self._layout)
        self._written = WrittenSlots()
        # With overwrite: how many reads there were, and per slot, when it was last written.
        self._reads = 0
        self._reads_at_write: dict[int, int] = {}

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole memory."""
        return torch.Size(self._layout.shape)

    @property
    def dim(self) -> int:
        """The slot dim, as a non-negative number."""
        return self._layout.dim

    @property
    def capacity(self) -> int:
        """Slots allocated."""
        return self._layout.capacity

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the memory."""
        return self._layout.dtype

    @property
    def device(self) -> torch.device:
        """Device of the memory."""
        return self._layout.device

    @property
    def overwrite(self) -> bool:
        """Whether slots may be rewritten."""
        return self._overwrite

    def __len__(self) -> int:
        """One past the last written slot: where :meth:`append` writes."""
        if not torch.compiler.is_compiling() and self._store.in_foreign_backward:
            self._refuse_recomputation("len(memory), a negative index or an open end")
        return self._written.end

    def __repr__(self) -> str:
        return (
            f"SlotMemory({self._layout.shape}, dim={self.dim}, dtype={self.dtype}, "
            f"device={self.device}, overwrite={self._overwrite}, written={self._written.end})"
        )

    def append(self, value: Tensor) -> None:
        """Write the next slot, or the next L slots.

        Args:
            value: one slot, shaped like the memory without ``dim``, or L slots, shaped like the
                memory with L at ``dim``.

        Raises:
            IndexError: the capacity is exceeded.
            ValueError, TypeError: ``value`` has another shape or device, or another dtype.
        """
        self._write(value, self._written.end)

    def write(self, value: Tensor, at: int) -> None:
        """Write one slot or L slots, the first of them at ``at``.

        Args:
            value: as in :meth:`append`.
            at: first slot written, ≥ 0.

        Raises:
            IndexError: a slot is outside the memory.
            RuntimeError: a slot has been written, and ``overwrite`` is False.
            ValueError, TypeError: ``value`` has another shape or device, or another dtype.
        """
        self._write(value, operator.index(at))

    def add(self, value: Tensor, at: int) -> None:
        """Add to one slot or to L slots that have been written, the first of them at ``at``.

        Args:
            value: as in :meth:`append`.
            at: first slot changed, ≥ 0.

        Raises:
            IndexError: a slot is outside the memory or has not been written.
            RuntimeError: ``overwrite`` is False.
            ValueError, TypeError: ``value`` has another shape or device, or another dtype.
        """
        region = self._layout.region(value, operator.index(at))
        if not self._overwrite:
            raise RuntimeError("add() changes slots: make the SlotMemory with overwrite=True")
        self._check_written(region)
        self._rewrite(value, region, add=True)

    def read(self, start: int | None = None, stop: int | None = None) -> Tensor:
        """View of the slots from ``start`` (default 0) to before ``stop`` (default ``len``).

        Returns:
            Shaped like the memory with ``stop - start`` slots at ``dim``.

        Raises:
            IndexError: a slot is outside the memory or has not been written.
        """
        begin = 0 if start is None else self._from_end(start)
        end = len(self) if stop is None else self._from_end(stop)
        if not 0 <= begin <= end:
            raise IndexError(f"start and stop must satisfy 0 ≤ start ≤ stop, got {begin} and {end}")
        return self._read(Region(self._layout.dim, begin, end, single=False))

    def __getitem__(self, key: int | slice | Tensor) -> Tensor:
        """Read slots: indexing along ``dim``.

        Args:
            key: int, for a view of one slot without ``dim``; slice with step 1, for a view that
                keeps ``dim``; int64 tensor, for a copy of the named slots with ``dim`` replaced by
                the tensor's dims. Negative ints count from ``len``, as in a list.

        Raises:
            IndexError: a slot is outside the memory or has not been written.
            TypeError, ValueError: ``key`` is none of the above.
        """
        if isinstance(key, Tensor):
            return self._gather(key)
        if not isinstance(key, slice):
            slot = self._slot(key)
            return self._read(Region(self._layout.dim, slot, slot + 1, single=True))
        if key.step not in (None, 1):
            raise ValueError(f"step must be 1, got {key.step}: read every n-th slot by a tensor")
        return self.read(key.start, key.stop)

    def detach_(self) -> None:
        """Keep the content and cut its history, as truncated backpropagation through time does."""
        self._readable().detach_()

    def __copy__(self) -> NoReturn:
        self._refuse_copy()

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse_copy()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse_copy()

    def _refuse_copy(self) -> NoReturn:
        raise TypeError(
            "a SlotMemory is tied to the graph that its writes and reads build and cannot be "
            "copied or pickled: make a new one and append(memory.read().detach())"
        )

    def _write(self, value: Tensor, at: int) -> None:
        region = self._layout.region(value, at)
        rewritten = self._written.first_written_between(region.start, region.stop)
        if rewritten is None:
            self._writable().write(value, region)
            self._written.add(region.start, region.stop)
            if self._overwrite:
                self._note_write(region)
            return
        if not self._overwrite:
            raise RuntimeError(
                f"slot {rewritten} has been written: write another slot, reset() the memory, or "
                "make it with overwrite=True"
            )
        # Slots that are rewritten and slots that are new, in one write: all count as rewritten.
        self._rewrite(value, region, add=False)
        self._written.add(region.start, region.stop)

    def _rewrite(self, value: Tensor, region: Region, *, add: bool) -> None:
        slots = range(region.start, region.stop)
        seen = any(self._reads_at_write.get(i, self._reads) != self._reads for i in slots)
        self._writable().rewrite(value, region, add=add, seen=seen)
        self._note_write(region)

    def _note_write(self, region: Region) -> None:
        for i in range(region.start, region.stop):
            self._reads_at_write[i] = self._reads

    def _read(self, region: Region) -> Tensor:
        self._check_written(region)
        return self._readable().read(region)

    def _gather(self, index: Tensor) -> Tensor:
        if index.dtype != torch.int64:
            raise TypeError(f"index must have dtype torch.int64, got {index.dtype}")
        flat = index.reshape(-1)
        self._check_index(flat)
        slots = self._readable().gather(self._layout.dim, flat.to(self._layout.device))
        if index.ndim == 0:
            return slots.squeeze(self._layout.dim)
        return slots if index.ndim == 1 else slots.unflatten(self._layout.dim, index.shape)

    def _slot(self, key: int) -> int:
        try:
            slot = self._from_end(operator.index(key))
        except TypeError:
            raise TypeError(
                "a SlotMemory is indexed along its slot dim, by an int, a slice or an int64 "
                f"tensor, got {key!r}: index the other dims of what read() returns"
            ) from None
        if slot < 0:
            raise IndexError(f"slot must be at least -len(memory) = {-len(self)}, got {key}")
        return slot

    def _from_end(self, slot: int) -> int:
        return slot if slot >= 0 else len(self) + slot

    def _check_written(self, region: Region) -> None:
        missing = self._written.first_missing_between(region.start, region.stop)
        if missing is not None:
            self._raise_missing(missing)

    def _check_index(self, index: Tensor) -> None:
        """Check a flat index tensor, without waiting for another device than the CPU."""
        if index.device.type == "cpu" and not torch.compiler.is_compiling():
            slots = index.tolist()
            lowest = min(slots, default=0)
            if lowest < 0:
                raise IndexError(f"index must name slots from 0, got {lowest}")
            missing = self._written.first_missing(slots)
            if missing is not None:
                self._raise_missing(missing)
            return
        inside = (index >= 0) & (index < self._written.end)
        if self._written.has_gaps:
            mask = torch.tensor(self._written.mask(), device=index.device)
            inside = inside & mask[index.clamp(0, self._written.end - 1)]
        torch._assert_async(inside.all(), "index must name slots that have been written")

    def _raise_missing(self, slot: int) -> NoReturn:
        raise IndexError(
            f"slot {slot} has not been written (the last written one is {self._written.end - 1}): "
            "write() or append() it before reading it"
        )

    def _writable(self) -> EagerStore | TracedStore:
        """The store, after checking that writing is allowed now."""
        if torch.compiler.is_compiling():
            self._enter_trace()
        elif self._store.in_foreign_backward:
            self._refuse_recomputation("writing a SlotMemory")
        return self._store

    def _readable(self) -> EagerStore | TracedStore:
        """The store, after checking that reading is allowed now."""
        if torch.compiler.is_compiling():
            self._enter_trace()
        elif self._overwrite:
            if self._store.in_foreign_backward:
                self._refuse_recomputation("reading a SlotMemory that has overwrite=True")
            self._reads += 1
        return self._store

    def _enter_trace(self) -> None:
        """Continue as plain tensor operations where a compiled function begins."""
        if isinstance(self._store, EagerStore):
            if self._store.has_history:
                raise RuntimeError(
                    "a SlotMemory with differentiable content cannot enter a compiled function: "
                    "reset() and fill it inside, or pass memory.read()"
                )
            self._store = TracedStore(self._store.tensor)

    def _refuse_recomputation(self, what: str) -> NoReturn:
        """Refuse what would mean something else when a backward pass runs the program again."""
        raise RuntimeError(
            f"{what} inside a backward pass (a checkpointed function that is recomputed) meets "
            "the memory as it is at the end, not as it was: read with explicit bounds, or read "
            "before and pass the result into the checkpointed function"
        )
