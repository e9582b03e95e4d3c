"""Reuse of memory after its last reader is deleted."""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch

Reference = weakref.ref[npt.NDArray[np.generic]]


class Recycler:
    """Free numbers 0..n-1. A number becomes free again when the last view of its tensor is deleted.

    shared: whether forked processes share the memory. A number with a tensor at a fork is never freed, because this
    process cannot know how long the child keeps its tensor.
    """

    def __init__(self, count: int, *, shared: bool = False) -> None:
        self._free = deque(range(count))
        # id of a reference -> the reference and its number
        self._lent: dict[int, tuple[Reference, int]] = {}
        self._gone: deque[Reference] = deque()  # references to memory without readers
        if shared:
            _shared.add(self)

    def __len__(self) -> int:
        self._collect()
        return len(self._free)

    def _collect(self) -> None:
        """Free the numbers of memory without readers."""
        with contextlib.suppress(IndexError):  # none left: other threads may collect too
            while True:
                _, number = self._lent.pop(id(self._gone.popleft()), (None, -1))
                if number >= 0:
                    self._free.append(number)

    def take(self) -> int:
        """Return a free number, which is then in use. Raises IndexError if there is none."""
        self._collect()
        return self._free.popleft()

    def give_back(self, number: int) -> None:
        """Make `number` free again at once."""
        self._free.append(number)

    def tensor(self, memory: npt.NDArray[np.generic], number: int) -> torch.Tensor:
        """Return a tensor over `memory`; `number` becomes free with the last tensor that shares its storage."""
        view = memory.view()  # torch keeps this object alive as long as the storage, including views of the tensor
        # No Python code may run at its deletion: Python ignores what a signal handler (Ctrl-C) raises there.
        reference = weakref.ref(view, self._gone.append)
        self._lent[id(reference)] = reference, number
        return torch.from_numpy(view)


_shared: weakref.WeakSet[Recycler] = weakref.WeakSet()


def _leave_all_to_children() -> None:
    """Keep the memory of all current tensors unchanged, because this process is about to be forked."""
    for recycler in list(_shared):
        recycler._collect()
        recycler._lent.clear()


os.register_at_fork(before=_leave_all_to_children)


class OutputBuffers:
    """Reusable memory for batches that the batch stage makes on the CPU.

    The page faults of a new 38 MB allocation take longer than normalising into it.
    """

    def __init__(self, dtype: torch.dtype, spare: int = 3) -> None:
        self._dtype, self._spare = dtype, spare
        self._memory: list[npt.NDArray[np.uint8]] = []
        self._recycler = Recycler(0)

    def take(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return an uninitialised tensor of `shape`; its memory is reused after its last reader is deleted."""
        num_bytes = math.prod(shape) * self._dtype.itemsize
        if not len(self._recycler):
            if len(self._memory) >= self._spare:  # the consumer keeps its batches: allocate new memory
                return torch.empty(shape, dtype=self._dtype, device="cpu")
            self._memory.append(np.empty(num_bytes, np.uint8))
            self._recycler.give_back(len(self._memory) - 1)
        number = self._recycler.take()
        if self._memory[number].nbytes < num_bytes:
            self._memory[number] = np.empty(num_bytes, np.uint8)
        return self._recycler.tensor(self._memory[number][:num_bytes], number).view(self._dtype).view(shape)
