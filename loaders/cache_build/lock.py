"""Lets one builder work at a time: a lock file says who holds it, and is replaced once that process is dead."""

from __future__ import annotations

import _thread
import contextlib
import errno
import fcntl
import json
import os
import platform
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from penstock.loaders.system.durable_file import open_private, remove_old_files, write_all
from penstock.loaders.system.file_read import open_regular
from penstock.loaders.system.json_file import decode_json
from penstock.loaders.system.process_identity import boot_id, pid_namespace, start_time
from penstock.pipelines.errors import LoaderError

HEARTBEAT_S = 5.0
SILENT_S = 60.0  # after which an owner that cannot be looked up is taken for dead
POLL_S = 0.2
# What link() answers on file systems that have no hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Identify a process, so that no other one is taken for it.

    Attributes:
        host: name of the machine.
        pid: process id.
        boot: id of the machine's boot.
        start: when the process started, in clock ticks since boot.
        pids: its pid namespace.
    """

    host: str
    pid: int
    boot: str
    start: int
    pids: str

    @classmethod
    def this_process(cls) -> Owner:
        """Identify the process that asks."""
        pid = os.getpid()
        return cls(host=platform.node(), pid=pid, boot=boot_id(), start=start_time(pid), pids=pid_namespace())

    @classmethod
    def parse(cls, data: bytes) -> Owner | None:
        """Read what is in a lock file; None for anything that is no owner."""
        try:
            return decode_json(data, cls)
        except ValueError:
            return None

    def alive(self) -> bool | None:
        """Return whether the process runs; None where this process cannot see it: another host, another container."""
        here = Owner.this_process()
        if (self.host, self.boot, self.pids) != (here.host, here.boot, here.pids):
            return None
        return start_time(self.pid) == self.start

    def describe(self) -> str:
        """Return words for people: "process 4242 on node7"."""
        return f"process {self.pid} on {self.host}"


class BuildLock:
    """Hold the lock at `path` from acquire() to release(); a context manager that releases.

    It is made whole, content and all, by a hard link. An owner that died is found by its process id, start time and
    boot; one on another host by its silence: a holder touches the file every HEARTBEAT_S. check() raises for a
    holder that was taken for dead. Ctrl-C in the middle of any of them leaves what release() puts right.
    """

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._fd = -1
        self._stop = threading.Lock()  # locked while there is a heartbeat

    def acquire(self, *, wait: bool = True, on_wait: Callable[[str], None] | None = None) -> None:
        """Take the lock, in the `with` that gives it back; `on_wait(owner)` is called while another builder holds it.

        Raises LoaderError E-CACHE if one does and `wait` is false, OSError where the folder takes no file.
        """
        watched = _Watched()
        while not self._make():
            seen = watched.look(self._path)
            if seen is None:
                continue
            if seen.dead and self._take_over(seen):
                break
            if not wait:
                raise LoaderError(
                    "E-CACHE", f"{seen.owner} is building it", fix="wait for it to finish", path=self._path
                )
            if on_wait is not None:
                on_wait(seen.owner)
            time.sleep(POLL_S)
        # Of processes that were killed while they made a lock; by the clock of the file system.
        folder, name = os.path.split(self._path)
        remove_old_files(folder, re.escape(name) + rb"\.[0-9a-f]{16}", os.fstat(self._fd).st_mtime - SILENT_S)
        self._stop = threading.Lock()
        self._stop.acquire()
        # Not of threading: Ctrl-C in its Event or Thread.start() leaves a lock of theirs held for ever.
        _thread.start_new_thread(_keep_beating, (os.dup(self._fd), self._stop))

    def _make(self) -> bool:
        """Make the lock file unless there is one; return whether it was made."""
        private = self._private()
        try:
            os.link(private, self._path)
        except FileExistsError:
            self._close()
            return False
        except OSError as error:
            self._close()
            if error.errno not in _NO_LINKS:
                raise
            return self._make_in_place()
        finally:
            # Raised here, an error would leave a lock that this process holds and does not know of.
            with contextlib.suppress(OSError):
                os.unlink(private)
        return True

    def _make_in_place(self) -> bool:
        # Empty for a moment: whoever looks then sees an owner that cannot be looked up, and waits.
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        try:
            write_all(self._fd, _content(), 0)
        except BaseException:
            self.release()
            raise
        return True

    def _private(self) -> bytes:
        """Make this lock's file under a name that nobody else knows, which is returned."""
        private = b"%s.%s" % (self._path, os.urandom(8).hex().encode())
        self._fd = open_private(private, os.O_RDWR | os.O_EXCL)
        try:
            write_all(self._fd, _content(), 0)
        except BaseException:
            self._close()
            os.unlink(private)
            raise
        return private

    def _take_over(self, seen: Seen) -> bool:
        """Replace a dead owner's lock; False where another process was faster."""
        try:
            old = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            with contextlib.suppress(OSError):  # some network file systems have no flock
                fcntl.flock(old, fcntl.LOCK_EX)
            # Whoever took it over in the meantime has put another file there; one that revived has touched it.
            if _mark(os.fstat(old)) != seen.mark or not self._is(old):
                return False
            private = self._private()
            try:
                os.replace(private, self._path)
            except OSError:
                self._close()
                os.unlink(private)
                raise
            return True
        finally:
            os.close(old)

    def _is(self, fd: int) -> bool:
        """Return whether the file open as `fd` is the one at the lock's path."""
        try:
            there, ours = os.stat(self._path), os.fstat(fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def check(self) -> None:
        """Raise LoaderError E-CACHE if the lock was taken from this process, which must then write no more."""
        if not self._is(self._fd):
            cause = "the lock is gone: another process took this one for dead, or someone removed it"
            raise LoaderError("E-CACHE", cause, fix="wait for it to finish", path=self._path)

    def release(self) -> None:
        """Give the lock back. Idempotent, also where Ctrl-C ended the last call."""
        if self._fd < 0:
            return
        if self._stop.locked():
            self._stop.release()
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX)  # nobody is taking it over now
        if self._is(self._fd):
            with contextlib.suppress(OSError):  # whoever comes next finds its owner dead, or silent
                os.unlink(self._path)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def __enter__(self) -> BuildLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _keep_beating(fd: int, stop: threading.Lock) -> None:
    """Touch the lock file, open as `fd`, until `stop` is released; then close it."""
    while not stop.acquire(timeout=HEARTBEAT_S):
        with contextlib.suppress(OSError):
            os.utime(fd)
    os.close(fd)


def _content() -> bytes:
    return json.dumps(asdict(Owner.this_process())).encode("ascii")


def _mark(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_mtime_ns


@dataclass(frozen=True)
class Seen:
    """Describe a lock file at one moment: who holds it, whether that is over, and the file's identity and time."""

    owner: str
    dead: bool
    mark: tuple[int, int, int]


class _Watched:
    """Look at a lock file again and again, to notice when it is no longer touched."""

    def __init__(self) -> None:
        self._mark: tuple[int, int, int] | None = None
        self._since_s = 0.0

    def look(self, path: bytes) -> Seen | None:
        """Return what is there now; None if nothing is. Raises LoaderError E-CACHE for what is no file, OSError."""
        try:
            with open(open_regular(path), "rb") as file:
                content, status = file.read(4096), os.fstat(file.fileno())
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            raise LoaderError("E-CACHE", "its lock is not a regular file", fix="remove it", path=path) from error
        mark, now_s = _mark(status), time.monotonic()
        if mark != self._mark:
            self._mark, self._since_s = mark, now_s
        owner = Owner.parse(content)
        alive = owner.alive() if owner else None
        silent = now_s - self._since_s > SILENT_S or (owner is not None and _rebooted(owner, status))
        name = owner.describe() if owner else "a process that is not known"
        return Seen(name, alive is False or (alive is None and silent), mark)


def _rebooted(owner: Owner, status: os.stat_result) -> bool:
    """Return whether the owner ran before this host was started again: another boot, and long silent."""
    here = Owner.this_process()
    return owner.host == here.host and owner.boot != here.boot and time.time() - status.st_mtime > SILENT_S
