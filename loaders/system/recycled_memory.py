"""Recycles memory when its last reader is gone."""

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
    """Hand out numbers 0..n-1; a number is free again when the last view of the tensor made for it is gone.

    shared: forked processes see the same memory. A number with a tensor at a fork is never free again, because this
    process cannot know how long the child keeps its tensor.
    """

    def __init__(self, count: int, *, shared: bool = False) -> None:
        self._free = deque(range(count))
        # id of a reference -> the reference and its number
        self._lent: dict[int, tuple[Reference, int]] = {}
        self._gone: deque[Reference] = deque()  # references whose memory has no reader any more
        if shared:
            _shared.add(self)

    def __len__(self) -> int:
        self._collect()
        return len(self._free)

    def _collect(self) -> None:
        """Free the numbers whose memory has no reader any more."""
        with contextlib.suppress(IndexError):  # no more left: other threads may collect too
            while True:
                _, number = self._lent.pop(id(self._gone.popleft()), (None, -1))
                if number >= 0:
                    self._free.append(number)

    def take(self) -> int:
        """Take a free number. Raises IndexError if there is none."""
        self._collect()
        return self._free.popleft()

    def give_back(self, number: int) -> None:
        """Make `number` free again at once."""
        self._free.append(number)

    def tensor(self, memory: npt.NDArray[np.generic], number: int) -> torch.Tensor:
        """Make a tensor over `memory`; `number` becomes free with the last tensor that shares its storage."""
        view = memory.view()  # torch keeps this object alive as long as the storage, views of the tensor included
        # No Python code may run when it is gone: Python drops what a signal handler (Ctrl-C) raises there.
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
    """Recycle memory for batches that the batch stage makes on the CPU.

    The page faults of a fresh 38 MB allocation cost more than normalising into it.
    """

    def __init__(self, dtype: torch.dtype, spare: int = 3) -> None:
        self._dtype, self._spare = dtype, spare
        self._memory: list[npt.NDArray[np.uint8]] = []
        self._recycler = Recycler(0)

    def take(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Take an uninitialised tensor of `shape`; its memory returns when its last reader is gone."""
        num_bytes = math.prod(shape) * self._dtype.itemsize
        if not len(self._recycler):
            if len(self._memory) >= self._spare:  # the consumer keeps its batches: give it fresh memory
                return torch.empty(shape, dtype=self._dtype, device="cpu")
            self._memory.append(np.empty(num_bytes, np.uint8))
            self._recycler.give_back(len(self._memory) - 1)
        number = self._recycler.take()
        if self._memory[number].nbytes < num_bytes:
            self._memory[number] = np.empty(num_bytes, np.uint8)
        return self._recycler.tensor(self._memory[number][:num_bytes], number).view(self._dtype).view(shape)
