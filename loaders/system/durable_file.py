"""Private files and folders that are complete on disk, or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Callable
from typing import BinaryIO

from penstock.loaders.system.real_path import real_path
from penstock.pipelines.errors import LoaderError

_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES})  # some network file systems
_ABANDONED_S = 3600.0  # longer than writing any file takes


def open_private(path: bytes, flags: int) -> int:
    """Open a file that only this user can read and write (0600 with any umask); create it if missing."""
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_private_folder(path: bytes) -> None:
    """Create a folder for this user alone (0700 with any umask) and its parents; keep an existing one."""
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
    """Make renames in a folder durable. Raises OSError, except on file systems that cannot sync folders."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def _read_umask() -> int:
    """Return the process's umask without changing it, because a change would affect other threads."""
    with open("/proc/self/status", "rb") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith(b"Umask:"))


def random_name(path: bytes) -> bytes:
    """Return a unique name next to `path`, for a file that will be renamed to `path`.

    It does not use the process id, which two containers may share.
    """
    return b"%s.tmp.%s" % (path, os.urandom(8).hex().encode())


def replace_file(
    path: bytes, content: bytes | Callable[[BinaryIO], object], *, private: bool = True, leftovers: bytes | None = None
) -> None:
    """Write `content`, or call it with the file, to replace `path` atomically. Raises OSError.

    A `private` file is 0600, otherwise the umask decides. A killed writer leaves `PATH.tmp.RANDOM`. The next writer
    removes it if it is an hour old, and with the pattern `leftovers` also those of matching files in the folder.
    """
    folder, name = os.path.split(path)
    remove_leftovers(folder, leftovers or re.escape(name))
    temporary = random_name(path)
    fd = open_private(temporary, os.O_WRONLY | os.O_EXCL)
    try:
        with open(fd, "wb", buffering=0) as file:
            if callable(content):
                content(file)
            else:
                write_all(fd, content, 0)
            if not private:
                os.fchmod(fd, 0o666 & ~_read_umask())
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(folder or b".")


def ensure_writable(path: str | os.PathLike[str], *, private: bool = False) -> None:
    """Check that a file can be written at `path` later; create missing folders, 0700 if `private`.

    Long tasks call it before they begin. A `private` file is replaced as a whole, so it cannot be a pipe or a device.
    Raises LoaderError E-ACCESS, or E-NOSPC for a full disk.
    """
    file = real_path(path)
    try:
        if os.path.isdir(file):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(file) and not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if os.path.exists(file) and not os.path.isfile(file):
            if private:
                raise OSError(errno.EINVAL, "it is not a regular file")
            return  # a pipe or a device; opening it would already act on it
        folder = os.path.dirname(file)
        if private:
            make_private_folder(folder)
        os.makedirs(folder, exist_ok=True)
        temporary = random_name(file)
        try:
            with open(open_private(temporary, os.O_WRONLY | os.O_EXCL), "wb", buffering=0) as trial:
                write_all(trial.fileno(), bytes(4096), 0)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    except OSError as error:
        code = "E-NOSPC" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "E-ACCESS"
        words = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror or str(error)
        cause = f"this file cannot be written: {words}"
        raise LoaderError(code, cause, fix="choose another path", path=os.fsencode(path)) from error


def remove_leftovers(folder: bytes, names: bytes, older_than_s: float = _ABANDONED_S) -> None:
    """Remove leftovers of killed writers in `folder`, as far as permitted; `names` is a pattern.

    Earlier versions wrote to NAME.tmp.PID and NAME.RANDOM.tmp.
    """
    remove_old_files(folder, names + rb"\.(tmp\.[0-9a-f]+|\w{8}\.tmp)", time.time() - older_than_s)


def remove_left_folders(folder: bytes, name: bytes) -> None:
    """Remove temporary folders over an hour old that killed writers of the folder `name` left in `folder`."""
    pattern = re.escape(name) + rb"\.tmp\.[0-9a-f]+"
    remove_old_files(folder, pattern, time.time() - _ABANDONED_S, remove=shutil.rmtree)


def remove_old_files(
    folder: bytes, pattern: bytes, before_s: float, remove: Callable[[bytes], object] = os.unlink
) -> None:
    """Remove entries of `folder` with a matching name, last written before `before_s`, as far as permitted."""
    with contextlib.suppress(OSError), os.scandir(folder or b".") as entries:
        for entry in entries:
            if re.fullmatch(pattern, entry.name):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before_s:
                        remove(entry.path)
