"""Stores fetched samples on a local disk, shared by all processes of a machine, within a limit of bytes."""

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
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.system.durable_file import write_all
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.native.library import native_library

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of fallocate(2)
_PAGE = mmap.PAGESIZE
_BYTES_PER_CALL = 4096  # reading this many more bytes takes about as long as another call
_RECORD = np.dtype([("crc", "<u4"), ("present", "u1")])
Index = npt.NDArray[np.int64]


class LocalCopy:
    """Stores samples at their offsets in the concatenated containers, in one sparse file.

    A table contains each sample's CRC-32 and whether it is present; it is written after the bytes, so that a killed
    process leaves at most unused bytes. Every read checks the CRC. The first samples stay, because an epoch reads each
    sample once: no eviction policy gives more hits than the share that fits. Threads and processes may share a folder.

    Args:
        folder: folder of this data set's copy; made if missing.
        limit: approximate number of bytes on disk.

    Attributes:
        fd: descriptor of the file with the samples, open while this object lives.
    """

    def __init__(self, folder: bytes, samples: Samples, limit: int) -> None:
        self.folder, self._limit = folder, limit
        self._bases = np.concatenate([np.zeros(1, np.int64), np.cumsum(samples.container_sizes, dtype=np.int64)])
        self._samples = samples
        self._is_full, self._reserved = False, 0
        self._passing = set[int]()  # samples of this process in the reserved room
        self._lock = threading.Lock()
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self.fd = _open(os.path.join(folder, b"samples"))
            weakref.finalize(self, os.close, self.fd).atexit = False
            self._table_fd = _open(os.path.join(folder, b"table"))
            weakref.finalize(self, os.close, self._table_fd).atexit = False
        except OSError as error:
            fix = "free disk space, or pass another local_cache folder, on a local disk"
            cause = f"cannot store a local copy: {error.strerror}"
            raise LoaderError("E-NOSPC", cause, fix=fix, path=folder) from error

    def records(self, samples: Index) -> npt.NDArray[Any]:
        """Return `crc` and `present` of `samples` (int64 [n]), read by pread: another program may truncate the file.

        A mapped table would then crash the process. Samples beyond the end of the file are not present.
        """
        size, count = _RECORD.itemsize, len(samples)
        if not count:
            return np.zeros(0, _RECORD)
        first, end = int(samples.min()), int(samples.max()) + 1
        if (end - first) * size <= _BYTES_PER_CALL * count:
            return np.frombuffer(_pread(self._table_fd, (end - first) * size, first * size), _RECORD)[samples - first]
        each = (_pread(self._table_fd, size, sample * size) for sample in samples.tolist())
        return np.frombuffer(b"".join(each), _RECORD)

    def has(self, samples: Index) -> npt.NDArray[np.bool_]:
        """Return which of `samples` (int64 [n]) are present."""
        present: npt.NDArray[np.bool_] = self.records(samples)["present"] == 1
        return present

    def stays(self, samples: Index) -> npt.NDArray[np.bool_]:
        """Return which of `samples` (int64 [n]) are present and stay so after they are read."""
        return self.has(samples) & [sample not in self._passing for sample in samples.tolist()]

    def offsets(self, samples: Index) -> Index:
        """Return the offsets of `samples` (int64 [n]) in the file."""
        found: Index = self._bases[self._samples.container_of(samples)] + self._samples.starts(samples)
        return found

    def read(self, sample: int) -> bytes | None:
        """Return the bytes of a sample; None if they are missing or damaged. Damaged bytes are dropped.

        A sample in the reserved room is dropped once it is read.
        """
        one = np.array([sample], np.int64)
        record = self.records(one)[0]
        if record["present"] != 1:
            return None
        try:
            data = os.pread(self.fd, int(self._samples.sizes[sample]), int(self.offsets(one)[0]))
        except OSError:
            data = b""
        is_sound = crc32(data, 0) == record["crc"]
        if not is_sound or sample in self._passing:
            with self._lock:
                self._drop(sample)  # if damaged, it is stored again the next time it is fetched
        return data if is_sound else None

    def keep(self, sample: int, data: memoryview, is_early: bool = False) -> bool:
        """Store a sample's bytes if there is room, `is_early` in the reserved room; return whether it is present.

        Warns (UserWarning) once if the disk is full.
        """
        place = sample * _RECORD.itemsize
        if _pread(self._table_fd, _RECORD.itemsize, place)[-1] == 1:
            return True
        limit = self._limit - data.nbytes - (0 if is_early else self._reserved)
        with self._lock:
            if self._is_full or self.num_bytes > limit:
                return False
            if self.num_bytes > self._limit - data.nbytes - self._reserved:
                self._passing.add(sample)
            number, start, _ = self._samples.place(sample)
            try:
                _write(data, self.fd, int(self._bases[number]) + start, self._table_fd, place)
            except OSError as error:
                self._is_full = True  # the stream continues without a copy
                self._drop(sample)
                reason = f"the local copy in {printable(self.folder)} cannot store more samples: {error.strerror}"
            else:
                return True
        warn_user(reason)
        return False

    @property
    def num_bytes(self) -> int:
        """Bytes of the copy on disk, including those of other processes."""
        return os.fstat(self.fd).st_blocks * 512

    def reserve(self, num_bytes: int) -> bool:
        """Reserve room for samples stored before they are needed; return whether the limit allows twice as much.

        Nothing is reserved if all data fits. If the copy is too full, samples are dropped.
        """
        has_room = self._limit >= int(self._bases[-1]) or 2 * num_bytes <= self._limit
        if has_room and self._limit < int(self._bases[-1]) and num_bytes != self._reserved:
            with self._lock:
                self._reserved = num_bytes
                self._passing.clear()
                is_over = self.num_bytes > self._limit - num_bytes
                for sample in np.flatnonzero(self.has(np.arange(len(self._samples)))) if is_over else ():
                    if self._is_full or self.num_bytes <= self._limit - num_bytes:
                        break
                    self._drop(int(sample))
        return has_room and not self._is_full

    def _drop(self, sample: int) -> None:
        """Remove a sample from the table and free its blocks."""
        with contextlib.suppress(OSError):  # a full disk: reads still check the CRC
            os.pwrite(self._table_fd, bytes(_RECORD.itemsize), sample * _RECORD.itemsize)
        self._passing.discard(sample)
        begin = int(self.offsets(np.array([sample], np.int64))[0])
        end = begin + int(self._samples.sizes[sample])
        if _punch_hole(self.fd, begin, end - begin):
            self._is_full = True
            return
        for page in {begin // _PAGE, (end - 1) // _PAGE}:  # shared with neighbours, which may all be absent
            if not any(os.pread(self.fd, _PAGE, page * _PAGE)):
                _punch_hole(self.fd, page * _PAGE, _PAGE)


def _open(path: bytes) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _write(data: memoryview, fd: int, offset: int, table_fd: int, place: int) -> None:
    """Write a sample at `offset` of one file, then its record at `place` of another. Raises OSError."""
    library = native_library()
    if library is None:
        write_all(fd, data, offset)
        write_all(table_fd, np.array((crc32(data, 0), 1), _RECORD).tobytes(), place)
        return
    address = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    error = library.pn_keep(address, data.nbytes, fd, offset, table_fd, place)
    if error:
        raise OSError(error, os.strerror(error))


def _pread(fd: int, size: int, offset: int) -> bytes:
    """Return `size` bytes; missing or unreadable bytes are zeros."""
    try:
        data = os.pread(fd, size, offset)
    except OSError:
        data = b""
    return data.ljust(size, b"\0")


def _punch_hole(fd: int, offset: int, size: int) -> int:
    """Replace part of a file by zeros without blocks on disk; return 0, or -1 if the disk cannot do this."""
    return int(_find_fallocate()(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, size))


@functools.cache
def _find_fallocate() -> Callable[[int, int, int, int], int]:
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function
