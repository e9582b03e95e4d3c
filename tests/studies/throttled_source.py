"""Data behind slow storage: a source whose reads wait, each by itself or for a bandwidth that all of them share."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import Source
from penstock.loaders.sources.view import View


class ThrottledSource(View):
    """Serves `source`, each read of which takes `latency_s` seconds longer.

    bytes_per_s, lock: besides, all reads of all processes and threads together get no more bytes than that in a
    second: each holds the lock, a file that is there, for as long as its bytes take.
    """

    def __init__(
        self, source: Source, *, latency_s: float = 0.0, bytes_per_s: float | None = None, lock: Path | None = None
    ) -> None:
        if (bytes_per_s is None) != (lock is None):
            raise ValueError("a bandwidth that is shared needs a file to lock: give both bytes_per_s and lock")
        super().__init__(source, len(source), "throttled")
        self._latency_s, self._bytes_per_s, self._lock = latency_s, bytes_per_s, lock

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Read an image, and wait."""
        data = super().read(index)
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

    def describe(self) -> str:
        """Describe the data in one line."""
        return f"{self.source.describe()}, throttled"
