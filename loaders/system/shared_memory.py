"""Arrays in anonymous shared memory, passed to worker processes by file descriptor."""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import weakref
from multiprocessing import context, reduction
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.system.machine import ensure_memory
from penstock.pipelines.errors import LoaderError


class SharedArray:
    """A numpy array in physical pages that a process shares with the workers it starts.

    The memory is a memfd. It does not have a name, so a signal cannot leak it in /dev/shm, and the size of /dev/shm
    (64 MB in a container) does not limit it. Its pages are reserved at creation, so a lack of memory is an error there,
    not a SIGBUS at the first access.

    It can only be pickled while a process is being started (`Process(args=...)` with spawn or forkserver); the worker
    maps the same pages. It uses two descriptors here and one in each worker. A start passes at most about 250
    descriptors, so put many slots into one array.
    """

    def __init__(self, fd: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        """Map `fd` and take ownership of it, even if this raises; `shape` and `dtype` as passed to `create`."""
        self.shape, self.dtype = shape, np.dtype(dtype)
        try:
            # mmap keeps a duplicate of fd, closed with the mapping when the last array over it is deleted.
            mapping = mmap.mmap(fd, _num_bytes(shape, self.dtype))
        except BaseException:
            os.close(fd)
            raise
        self._fd: int | None = fd
        self._close_fd = weakref.finalize(self, os.close, fd)
        self._array: npt.NDArray[Any] | None = np.ndarray(shape, self.dtype, buffer=mapping)

    @classmethod
    def create(cls, shape: tuple[int, ...], dtype: npt.DTypeLike, *, name: str = "penstock") -> SharedArray:
        """Return zeroed memory for `shape` of `dtype`; /proc/PID/maps shows `name`.

        Raises LoaderError E-SHM without enough memory, E-FD without enough descriptors, ValueError for a
        dtype with Python objects.
        """
        dtype, shape = np.dtype(dtype), tuple(int(side) for side in shape)
        if dtype.hasobject:
            raise ValueError(f"shared memory can only store plain numbers, got {dtype}: convert the array first")
        num_bytes = _num_bytes(shape, dtype)
        try:
            # The kernel accepts a memfd that is too large, and later kills a process, perhaps another one.
            ensure_memory(num_bytes, "shared memory", "E-SHM")
            return cls(_reserve(name, num_bytes), shape, dtype)
        except OSError as error:
            code = "E-FD" if error.errno in (errno.EMFILE, errno.ENFILE) else "E-SHM"
            raise LoaderError(code, f"cannot reserve {num_bytes:,} bytes of shared memory: {error.strerror}") from error

    @property
    def array(self) -> npt.NDArray[Any]:
        """The array of `shape` and `dtype`, writable, over the shared pages. Raises ValueError after close()."""
        if self._array is None:
            raise ValueError("this SharedArray is closed")
        return self._array

    def close(self) -> None:
        """Release the memory: unmapped with the last array over it, freed with the last process. Idempotent."""
        self._array, self._fd = None, None
        self._close_fd()

    def __reduce__(self) -> tuple[object, ...]:
        if context.get_spawning_popen() is None:
            raise RuntimeError("a SharedArray can only be sent to a new process: pass it in Process(args=...)")
        if self._fd is None:
            raise RuntimeError("a SharedArray can only be sent by the process that created it, before close()")
        return _attach, (reduction.DupFd(self._fd), self.shape, self.dtype)


def _attach(duplicate: Any, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> SharedArray:
    """Return the same memory in the started process, which only needs the mapping's descriptor."""
    shared = SharedArray(duplicate.detach(), shape, dtype)
    shared._fd = None
    shared._close_fd()
    return shared


def _reserve(name: str, num_bytes: int) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, num_bytes)
        # Seal the size: shrinking the file under a reader would be a SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _num_bytes(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int:
    return max(1, math.prod(shape) * dtype.itemsize)  # an empty mapping is not allowed
