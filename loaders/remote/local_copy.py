"""Keeps fetched samples on a local disk, shared by all processes of a machine, within a limit of bytes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.cache.format import crc32
from penstock.loaders.sources.range_index import RangeIndex
from penstock.pipelines.errors import LoaderError, printable, size_text

Index = npt.NDArray[np.int64]
NextUse = Callable[[Index], Index]  # samples -> when each is needed next, in samples served until then

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of fallocate(2)
_CANDIDATES = 4096  # samples that are looked at to find some to drop
_DROPPED_AT_ONCE = 64
_RECORD = np.dtype([("crc", "<u4"), ("present", "u1")])


class LocalCopy:
    """Store samples at the place that they have in the containers, laid end to end in one sparse file.

    A table holds for each sample its CRC-32 and whether it is there; it is written after the bytes, so that a process
    that is killed leaves at most bytes that nobody uses. Every read checks the CRC. When the limit is reached, the
    sample is dropped that is needed last (Belady, "A study of replacement algorithms", IBM Systems Journal 1966), found
    among random candidates; where the future is not known, a random one.

    Args:
        folder: where the copy of this data set lies; made if missing.
        limit: bytes on disk, about.

    Attributes:
        fd: descriptor of the file with the samples.
    """

    def __init__(self, folder: bytes, index: RangeIndex, limit: int) -> None:
        self.folder, self._limit = folder, limit
        sizes = np.array([index.container(number).size for number in range(index.num_containers)], np.int64)
        self._bases = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self._index = index
        self._is_full = False
        self.next_use: NextUse | None = None
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self.fd = os.open(os.path.join(folder, b"samples"), flags, 0o600)
            table = os.open(os.path.join(folder, b"table"), flags, 0o600)
            os.ftruncate(table, max(1, len(index)) * _RECORD.itemsize)
            with open(table, "r+b") as file:
                self._table: npt.NDArray[Any] = np.memmap(file, _RECORD, "r+", shape=(len(index),))
        except OSError as error:
            fix = "pass another local_cache folder, on a local disk"
            raise LoaderError("E-NOSPC", f"cannot keep a local copy: {error.strerror}", fix=fix, path=folder) from error
        self._random = np.random.default_rng(os.getpid())

    def has(self, samples: Index) -> npt.NDArray[np.bool_]:
        """Return which of `samples` (int64 [n]) are there."""
        present: npt.NDArray[np.bool_] = self._table["present"][samples] == 1
        return present

    def offsets(self, samples: Index) -> Index:
        """Return where `samples` (int64 [n]) begin in the file."""
        containers = self._index.container_of[samples].astype(np.int64)
        found: Index = self._bases[containers] + self._index.starts[samples].astype(np.int64)
        return found

    def crcs(self, samples: Index) -> npt.NDArray[np.uint32]:
        """Return the CRC-32 of `samples` (int64 [n])."""
        found: npt.NDArray[np.uint32] = self._table["crc"][samples]
        return found

    def read(self, sample: int) -> bytes | None:
        """Return the bytes of a sample; None if they are not there, or not as they were stored."""
        one = np.array([sample], np.int64)
        if not self.has(one)[0]:
            return None
        try:
            data = os.pread(self.fd, int(self._index.sizes[sample]), int(self.offsets(one)[0]))
        except OSError:
            return None
        return data if crc32(data, 0) == int(self.crcs(one)[0]) else None

    def keep(self, sample: int, data: memoryview) -> None:
        """Store the bytes of a sample, unless another one that is there is needed earlier."""
        one = np.array([sample], np.int64)
        if self._is_full or self.has(one)[0] or not self._make_room(sample, data.nbytes):
            return
        try:
            offset, done = int(self.offsets(one)[0]), 0
            while done < data.nbytes:
                done += os.pwrite(self.fd, data[done:], offset + done)
        except OSError as error:
            self._is_full = True  # the stream goes on without
            warnings.warn(
                f"the local copy in {printable(self.folder)} takes no more samples: {error.strerror}", stacklevel=2
            )
            return
        self._table["crc"][sample] = crc32(data, 0)
        self._table["present"][sample] = 1

    @property
    def num_bytes(self) -> int:
        """Bytes that the copy takes on disk, those of other processes included."""
        return os.fstat(self.fd).st_blocks * 512

    def _make_room(self, sample: int, size: int) -> bool:
        """Drop samples until `size` bytes fit; False if `sample` is needed later than any that could be dropped."""
        while self.num_bytes + size > self._limit:
            drawn = np.unique(self._random.integers(0, len(self._index), _CANDIDATES))
            candidates = drawn[self.has(drawn)]
            if not len(candidates):
                return False
            if self.next_use is not None:
                when = self.next_use(np.append(candidates, sample))
                candidates = candidates[np.argsort(when[:-1])[::-1]]
                if when[-1] >= when[:-1].max():
                    return False
            for dropped in candidates[: min(_DROPPED_AT_ONCE, max(1, len(candidates) // 8))].tolist():
                self._drop(dropped)
        return True

    def _drop(self, sample: int) -> None:
        self._table["present"][sample] = 0
        offset = int(self.offsets(np.array([sample], np.int64))[0])
        if _fallocate(self.fd, _KEEP_SIZE | _PUNCH_HOLE, offset, int(self._index.sizes[sample])):
            self._is_full = True

    def describe(self) -> str:
        """Say in a few words what is there."""
        return f"{int((self._table['present'] == 1).sum()):,} samples, {size_text(self.num_bytes)} on disk"

    def close(self) -> None:
        """Close the files; what is stored stays."""
        with contextlib.suppress(OSError):
            os.close(self.fd)


def _fallocate(fd: int, mode: int, offset: int, size: int) -> int:
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return int(function(fd, mode, offset, size))
