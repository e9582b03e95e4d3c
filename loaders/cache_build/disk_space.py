"""Checks for free disk space before it is needed, and explains failed writes."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from penstock.pipelines.errors import LoaderError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FIX_LIMIT = "raise the limit (ulimit -f), or build more shards"
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def measure_room(folder: bytes) -> tuple[int, int]:
    """Return the free bytes for this user on the file system of `folder`, and the size limit of one file."""
    status = os.statvfs(folder)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return status.f_bavail * status.f_frsize, 2**63 - 1 if limit == resource.RLIM_INFINITY else limit


def ensure_room(folder: bytes, path: bytes, written: int, total: int) -> None:
    """Raise LoaderError E-NOSPC unless a file of `total` bytes fits; `written` of them are already stored."""
    free, limit = measure_room(folder)
    if total - written > free:
        raise LoaderError("E-NOSPC", f"need={total - written:,} more bytes, have={free:,}", path=path)
    if total > limit:
        cause = f"a file of {total:,} bytes exceeds the limit of {limit:,} (RLIMIT_FSIZE)"
        raise LoaderError("E-NOSPC", cause, fix=_FIX_LIMIT, path=path)


@contextlib.contextmanager
def write_errors_as_loader_errors(path: bytes) -> Iterator[None]:
    """Convert an OSError of the block, which writes `path`, to the matching LoaderError."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            cause = f"{error.strerror}: the limit is {measure_room(os.path.dirname(path))[1]:,} bytes (RLIMIT_FSIZE)"
            raise LoaderError("E-NOSPC", cause, fix=_FIX_LIMIT, path=path) from error
        if error.errno in _FULL:
            raise LoaderError("E-NOSPC", error.strerror or "the disk is full", path=path) from error
        cause = error.strerror or str(error)
        if error.errno in _DENIED:
            raise LoaderError(
                "E-ACCESS", f"cannot write here: {cause}", fix="choose another folder", path=path
            ) from error
        raise LoaderError("E-CACHE", f"cannot be written: {cause}", fix="check the storage", path=path) from error
