"""Files and folders for this user alone that are whole on the disk, or not there."""

from __future__ import annotations

import contextlib
import errno
import os

_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES})  # some network file systems


def open_private(path: bytes, flags: int) -> int:
    """A descriptor of a file that only this user reads and writes (0600 whatever the umask), made where missing."""
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_private_folder(path: bytes) -> None:
    """A folder of this user alone (0700 whatever the umask), and those above it; one that is there stays as it is."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent:
        make_private_folder(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)


def write_all(fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write `data` at `offset`. Raises OSError."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def sync_folder(path: bytes) -> None:
    """Make what was renamed in a folder last. Raises OSError; that a file system syncs no folders is no error."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def _umask() -> int:
    """Return the process's umask without changing it, which would be seen by other threads."""
    with open("/proc/self/status", "rb") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith(b"Umask:"))


def replace_file(path: bytes, content: bytes, *, private: bool = True) -> None:
    """Put `content` at `path`: whoever looks finds what was there before, or all of it. Raises OSError.

    The file is this user's alone (0600) if it is `private`, else the umask decides.
    """
    temporary = b"%s.tmp.%d" % (path, os.getpid())
    fd = open_private(temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        try:
            write_all(fd, content, 0)
            if not private:
                os.fchmod(fd, 0o666 & ~_umask())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path) or b".")
