"""Writes files and folders for this user alone that are whole on the disk, or not there."""

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
_ABANDONED_S = 3600.0  # longer than any file takes to be written


def open_private(path: bytes, flags: int) -> int:
    """Open a file that only this user reads and writes (0600 whatever the umask), made where missing."""
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_private_folder(path: bytes) -> None:
    """Make a folder of this user alone (0700 whatever the umask), and those above it; one that is there stays."""
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


def random_name(path: bytes) -> bytes:
    """Return a name beside `path` that nobody else takes, for what becomes `path`.

    Not by the process's number: two containers may both be number 1, and would write to one file.
    """
    return b"%s.tmp.%s" % (path, os.urandom(8).hex().encode())


def replace_file(
    path: bytes,
    content: bytes | Callable[[BinaryIO], object],
    *,
    private: bool = True,
    leftovers: bytes | None = None,
) -> None:
    """Put `content`, or what it writes, at `path`: a reader finds what was there before, or all of it. Raises OSError.

    The file is this user's alone (0600) if it is `private`, else the umask decides. A writer that is killed leaves
    `PATH.tmp.RANDOM`, which the next writer of the file removes once it is an hour old, with those of all files of the
    folder whose names match the pattern `leftovers` where it is given.
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
                os.fchmod(fd, 0o666 & ~_umask())
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(folder or b".")


def ensure_writable(path: str | os.PathLike[str], *, private: bool = False) -> None:
    """Try whether a file can be written at `path` later; folders that are missing are made, 0700 if `private`.

    A `private` file is replaced as a whole, so it is no pipe or device.

    Work that takes hours calls it before it begins. Raises LoaderError E-ACCESS, or E-NOSPC for a full disk.
    """
    file = real_path(path)
    try:
        if os.path.isdir(file):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(file) and not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if os.path.exists(file) and not os.path.isfile(file):
            if private:
                raise OSError(errno.EINVAL, "it is no regular file")
            return  # a pipe or a device, which may only be opened to be written to
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
        raise LoaderError(code, cause, fix="choose another place for it", path=os.fsencode(path)) from error


def remove_leftovers(folder: bytes, names: bytes, older_than_s: float = _ABANDONED_S) -> None:
    """Remove what killed writers of files in `folder` left there, where this process may; `names` is a pattern.

    Earlier versions wrote to NAME.tmp.PID and NAME.RANDOM.tmp.
    """
    remove_old_files(folder, names + rb"\.(tmp\.[0-9a-f]+|\w{8}\.tmp)", time.time() - older_than_s)


def remove_left_folders(folder: bytes, name: bytes) -> None:
    """Remove the folders, and all in them, that killed writers of the folder `name` left in `folder` an hour ago."""
    pattern = re.escape(name) + rb"\.tmp\.[0-9a-f]+"
    remove_old_files(folder, pattern, time.time() - _ABANDONED_S, remove=shutil.rmtree)


def remove_old_files(
    folder: bytes, pattern: bytes, before_s: float, remove: Callable[[bytes], object] = os.unlink
) -> None:
    """Remove what has a matching name in `folder` and was last written before `before_s`, where it may."""
    with contextlib.suppress(OSError), os.scandir(folder or b".") as entries:
        for entry in entries:
            if re.fullmatch(pattern, entry.name):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before_s:
                        remove(entry.path)
