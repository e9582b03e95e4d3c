"""Lets only one builder work at a time: a lock file, locked by the package filelock, names its owner."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import stat
import time
import warnings
from collections.abc import Callable

from filelock import SoftFileLock, Timeout, UnixFileLock

from penstock.loaders.system.durable_file import write_all
from penstock.pipelines.errors import LoaderError

POLL_S = 0.2
_MOST_MISSED = 100  # consecutive times that the lock neither exists nor can be taken; 2 s in total


class BuildLock:
    """The lock at `path`, held from acquire() to release(); a context manager that releases it.

    The kernel releases the lock of a dead process at once. On a file system that cannot lock files, the lock is a
    SoftFileLock: the existence of the file. Ctrl-C inside any method leaves a state that release() clears.
    """

    def __init__(self, path: bytes) -> None:
        self._path = path
        # Each acquire() is a single attempt: the loop below reports the owner between attempts.
        self._lock: UnixFileLock | SoftFileLock = UnixFileLock(os.fsdecode(path), mode=0o600, blocking=False)
        self._mark: tuple[int, int] | None = None  # identity of the file while this process holds it

    def acquire(self, *, wait: bool = True, on_wait: Callable[[str], None] | None = None) -> None:
        """Take the lock; call it inside the `with` block. `on_wait(owner)` is called while another builder holds it.

        Raises LoaderError E-CACHE if another builder holds it and `wait` is false, or if its path is not a regular
        file; OSError if no file can be created in the folder.
        """
        missed = 0
        while not self._try_acquire():
            owner = self._read_owner()
            if owner is None:  # it has just been released
                missed += 1
                if missed > _MOST_MISSED:  # as in /proc, where a new file is "not found"
                    cause = "no file can be created in the folder"
                    raise FileNotFoundError(errno.ENOENT, cause, os.fsdecode(self._path))
                time.sleep(POLL_S / 10)
                continue
            missed = 0
            if not wait:
                raise LoaderError("E-CACHE", f"{owner} is building it", fix="wait for it to finish", path=self._path)
            if on_wait is not None:
                on_wait(owner)
            time.sleep(POLL_S)
        self._mark = self._file_identity()
        if not isinstance(self._lock, SoftFileLock):  # which writes the same two lines itself
            fd = os.open(self._path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                write_all(fd, b"%d\n%s\n" % (os.getpid(), os.fsencode(platform.node())), 0)
            finally:
                os.close(fd)

    def _try_acquire(self) -> bool:
        os.stat(os.path.dirname(self._path) or b".")  # some versions of filelock create a missing folder
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(self._path).st_mode):
                raise LoaderError("E-CACHE", "its lock is not a regular file", fix="remove it", path=self._path)
        with contextlib.suppress(Timeout), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flock not supported")  # the fallback below handles it
            try:
                self._lock.acquire()
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                    raise
                with contextlib.suppress(OSError):
                    if os.path.getsize(self._path) == 0:  # another builder's file names its owner
                        os.unlink(self._path)
                self._lock = SoftFileLock(os.fsdecode(self._path), mode=0o600, blocking=False)
                self._lock.acquire()
        return self._lock.is_locked

    def _read_owner(self) -> str | None:
        """Return the holder of the lock, such as "process 4242 on node7"; None if there is no lock file."""
        try:
            with open(self._path, "rb") as file:
                pid, host, *_ = [*os.fsdecode(file.read(1024)).split("\n"), "", ""]
        except FileNotFoundError:
            return None
        return f"process {pid} on {host}" if pid.isdecimal() and host else "an unknown process"

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def check(self) -> None:
        """Raise LoaderError E-CACHE if the lock file was removed: another process may hold the lock."""
        if self._mark is None or self._file_identity() != self._mark:
            raise LoaderError("E-CACHE", "the lock file was removed", fix="wait for it to finish", path=self._path)

    def release(self) -> None:
        """Release the lock and remove its file. Idempotent, even after a call that Ctrl-C interrupted."""
        if not self._lock.is_locked:
            return
        # Removed while locked: a process that locks the removed file checks again. Another process's file stays.
        if self._mark is None or self._file_identity() == self._mark:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._mark = None
        self._lock.release()

    def __enter__(self) -> BuildLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
