"""Keeps fetched samples on a local disk, shared by all processes of a machine, within a limit of bytes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.cache.format import crc32
from penstock.loaders.data.files.range_index import Ranges
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.user_warnings import warn_user

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of fallocate(2)
_PAGE = mmap.PAGESIZE
_BYTES_PER_CALL = 4096  # to read so many more takes about as long as one more call
_RECORD = np.dtype([("crc", "<u4"), ("present", "u1")])
Index = npt.NDArray[np.int64]
# (samples, whether the batch that is being announced is past) -> the place in the stream at which each is needed next.
NextUse = Callable[[Index, bool], Index]

_CANDIDATES = 4096  # samples that are looked at in one draw
_USES = 64  # of a draw: the order of so many samples takes milliseconds to compute
_MAX_SHARE = 32  # one in so many candidates is dropped, so that of few only the best are


class LocalCopy:
    """Store samples at the place that they have in the containers, laid end to end in one sparse file.

    A table holds for each sample its CRC-32 and whether it is there; it is written after the bytes, so that a process
    that is killed leaves at most bytes that nobody uses. Every read checks the CRC. When the limit is reached, the
    sample is dropped that is needed last (Belady, "A study of replacement algorithms", IBM Systems Journal 1966), found
    among random candidates; where the future is not known, a random one. Threads and processes may share a folder.

    Args:
        folder: where the copy of this data set lies; made if missing.
        limit: bytes on disk, about.

    Attributes:
        fd: descriptor of the file with the samples, open while this object lives.
        victims: decides what is dropped.
    """

    def __init__(self, folder: bytes, index: Ranges, limit: int) -> None:
        self.folder, self._limit = folder, limit
        self._bases = np.concatenate([np.zeros(1, np.int64), np.cumsum(index.container_sizes, dtype=np.int64)])
        self._index = index
        self._is_full = False
        self._lock = threading.Lock()
        self.victims = Victims(len(index), self.has)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self.fd = _open(os.path.join(folder, b"samples"))
            weakref.finalize(self, os.close, self.fd).atexit = False
            self._table_fd = _open(os.path.join(folder, b"table"))
            weakref.finalize(self, os.close, self._table_fd).atexit = False
        except OSError as error:
            fix = "free disk space, or pass another local_cache folder, on a local disk"
            raise LoaderError("E-NOSPC", f"cannot keep a local copy: {error.strerror}", fix=fix, path=folder) from error

    def _records(self, samples: Index) -> npt.NDArray[Any]:
        """Return the table's records of `samples` (int64 [n]), read by pread: another program may cut the file.

        A mapped table would end the process then. What lies behind the end of the file is not there.
        """
        size, count = _RECORD.itemsize, len(samples)
        if not count:
            return np.zeros(0, _RECORD)
        first, end = int(samples.min()), int(samples.max()) + 1
        if (end - first) * size <= _BYTES_PER_CALL * count:
            return np.frombuffer(_pread(self._table_fd, (end - first) * size, first * size), _RECORD)[samples - first]
        each = (_pread(self._table_fd, size, sample * size) for sample in samples.tolist())
        return np.frombuffer(b"".join(each), _RECORD)

    def _record(self, sample: int, crc: int, present: int) -> None:
        os.pwrite(self._table_fd, np.array((crc, present), _RECORD).tobytes(), sample * _RECORD.itemsize)

    def has(self, samples: Index) -> npt.NDArray[np.bool_]:
        """Return which of `samples` (int64 [n]) are there."""
        present: npt.NDArray[np.bool_] = self._records(samples)["present"] == 1
        return present

    def offsets(self, samples: Index) -> Index:
        """Return where `samples` (int64 [n]) begin in the file."""
        containers = self._index.container_of[samples].astype(np.int64)
        found: Index = self._bases[containers] + self._index.starts[samples].astype(np.int64)
        return found

    def crcs(self, samples: Index) -> npt.NDArray[np.uint32]:
        """Return the CRC-32 of `samples` (int64 [n])."""
        found: npt.NDArray[np.uint32] = self._records(samples)["crc"].astype(np.uint32)
        return found

    def read(self, sample: int) -> bytes | None:
        """Return the bytes of a sample; None if they are not there, or damaged, in which case they are dropped."""
        one = np.array([sample], np.int64)
        if not self.has(one)[0]:
            return None
        try:
            data = os.pread(self.fd, int(self._index.sizes[sample]), int(self.offsets(one)[0]))
        except OSError:
            data = b""
        if crc32(data, 0) == int(self.crcs(one)[0]):
            return data
        with self._lock:
            self._drop(sample)  # damaged: the next time it is fetched it is stored again
        return None

    def keep(self, sample: int, data: memoryview, again: int = 0) -> None:
        """Store the bytes of a sample that is needed at place `again`, unless all that is there is needed earlier."""
        one = np.array([sample], np.int64)
        if self._is_full or self.has(one)[0]:
            return
        crc = crc32(data, 0)
        with self._lock:
            if self._is_full or self.has(one)[0] or not self._make_room(data.nbytes, again):
                return
            try:
                offset, done = int(self.offsets(one)[0]), 0
                while done < data.nbytes:
                    done += os.pwrite(self.fd, data[done:], offset + done)
                self._record(sample, crc, 1)
            except OSError as error:
                self._is_full = True  # the stream goes on without
                self._drop(sample)
                reason = f"the local copy in {printable(self.folder)} takes no more samples: {error.strerror}"
            else:
                return
        warn_user(reason)

    @property
    def num_bytes(self) -> int:
        """Bytes that the copy takes on disk, those of other processes included."""
        return os.fstat(self.fd).st_blocks * 512

    @property
    def is_limited(self) -> bool:
        """Whether the limit is below the size of the data, so that samples are dropped."""
        return self._limit < int(self._bases[-1])

    def can_hold(self, num_bytes: int) -> bool:
        """Say whether samples of so many bytes may be stored before they are needed: twice as many fit."""
        return not self._is_full and (not self.is_limited or 2 * num_bytes <= self._limit)

    def _make_room(self, size: int, again: int) -> bool:
        """Drop samples until `size` bytes fit; return whether they do."""
        while self.num_bytes + size > self._limit:
            dropped = self.victims.take(again)
            if dropped is None or self._is_full:
                return False
            self._drop(dropped)
        return True

    def _drop(self, sample: int) -> None:
        """Take a sample out of the table, and give its blocks back."""
        with contextlib.suppress(OSError):  # a full disk: what is read is compared with its CRC
            self._record(sample, 0, 0)
        begin = int(self.offsets(np.array([sample], np.int64))[0])
        end = begin + int(self._index.sizes[sample])
        if _punch_hole(self.fd, begin, end - begin):
            self._is_full = True
            return
        for page in {begin // _PAGE, (end - 1) // _PAGE}:  # shared with neighbours, of which none may be there
            if not any(os.pread(self.fd, _PAGE, page * _PAGE)):
                _punch_hole(self.fd, page * _PAGE, _PAGE)


def _open(path: bytes) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _pread(fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes; those that the file does not have, or that the disk cannot read, are zeros."""
    try:
        data = os.pread(fd, size, offset)
    except OSError:
        data = b""
    return data.ljust(size, b"\0")


def _punch_hole(fd: int, offset: int, size: int) -> int:
    """Make a part of a file zeros without blocks on the disk; return 0, or -1 where the disk cannot."""
    return int(_find_fallocate()(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, size))


@functools.cache
def _find_fallocate() -> Callable[[int, int, int, int], int]:
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function


class Victims:
    """Choose what to drop: of random candidates those that are needed last; random ones if the future is not known.

    Args:
        num_samples: of the data set.
        has: takes samples and returns which are there.

    Attributes:
        next_use: computes when samples are needed next; None if that is not known.
    """

    def __init__(self, num_samples: int, has: Callable[[Index], npt.NDArray[np.bool_]]) -> None:
        self._num_samples, self._has = num_samples, has
        self.next_use: NextUse | None = None
        self._random = np.random.default_rng()
        self._best: list[tuple[int, int]] = []  # (place at which it is needed, sample), that needed last at the end
        self._uses_left = 0

    def take(self, again: int) -> int | None:
        """Return a sample to drop for one that is needed at place `again`; None if none is needed later."""
        if not self._uses_left:
            self._draw()
        self._uses_left -= 1
        while self._best and self._best[-1][0] > again:
            sample = self._best.pop()[1]
            if self._has(np.array([sample]))[0]:
                return sample
        return None

    def _draw(self) -> None:
        drawn = self._random.permutation(np.unique(self._random.integers(0, self._num_samples, _CANDIDATES)))
        found = drawn[self._has(drawn)]
        when = np.full(len(found), np.iinfo(np.int64).max) if self.next_use is None else self.next_use(found, False)
        count = min(_USES, -(-len(found) // _MAX_SHARE))
        last = np.argsort(when, kind="stable")[len(found) - count :]
        self._best = list(zip(when[last].tolist(), found[last].tolist(), strict=True))
        self._uses_left = max(1, count)
