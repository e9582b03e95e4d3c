"""Data behind slow storage: a source whose reads wait, each by itself or for a bandwidth that all of them share."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import Source


class ThrottledSource:
    """`source`, each of whose reads takes `latency_s` seconds longer. See Source for the methods.

    bytes_per_s, lock: besides, all reads of all processes and threads together get no more bytes than that in a
    second: each holds the lock, a file that is there, for as long as its bytes take.
    """

    def __init__(
        self, source: Source, *, latency_s: float = 0.0, bytes_per_s: float | None = None, lock: Path | None = None
    ) -> None:
        if (bytes_per_s is None) != (lock is None):
            raise ValueError("a bandwidth that is shared needs a file to lock: give both bytes_per_s and lock")
        self._source, self._latency_s = source, latency_s
        self._bytes_per_s, self._lock = bytes_per_s, lock
        self.classes, self.skipped, self.fingerprint = source.classes, source.skipped, source.fingerprint

    def __len__(self) -> int:
        return len(self._source)

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """See Source."""
        data = self._source.read(index)
        if self._latency_s:
            time.sleep(self._latency_s)
        if self._bytes_per_s is not None and self._lock is not None:
            num_bytes = len(data) if isinstance(data, bytes) else data.nbytes
            fd = os.open(self._lock, os.O_RDONLY)  # one of its own: the lock is held between descriptors
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                time.sleep(num_bytes / self._bytes_per_s)
            finally:
                os.close(fd)
        return data

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See Source."""
        return self._source.labels(indices)

    def path(self, index: int) -> bytes:
        """See Source."""
        return self._source.path(index)

    def describe(self) -> str:
        """See Source."""
        return f"{self._source.describe()}, throttled"
