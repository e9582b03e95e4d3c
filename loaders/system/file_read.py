"""Reading of whole files, with detection of changes, named errors, and text decoding."""

from __future__ import annotations

import codecs
import errno
import os
import stat

from penstock.pipelines.errors import LoaderError

# O_NONBLOCK: opening a FIFO that has replaced a file would wait for a writer forever. No effect on regular files.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_CODES = {
    errno.ENOENT: "E-MISSING",
    errno.ENOTDIR: "E-MISSING",
    errno.ELOOP: "E-MISSING",
    errno.EACCES: "E-ACCESS",
    errno.EPERM: "E-ACCESS",
    errno.ENXIO: "E-CHANGED",  # a socket has replaced the file
    errno.EISDIR: "E-CHANGED",
    errno.EMFILE: "E-FD",
    errno.ENFILE: "E-FD",
    errno.ENOMEM: "E-MEM",
}


def open_regular(path: bytes) -> int:
    """Open a regular file for reading. Raises OSError, with ENXIO (at once) for a FIFO, a device or a folder."""
    fd = os.open(path, _READ_FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ENXIO, "not a regular file", path)
    return fd


def mtime_ns(status: os.stat_result) -> int:
    """Return a file's modification time in ns, at most 2**63 - 1 (the year 2262)."""
    return min(status.st_mtime_ns, 2**63 - 1)


def read_unchanged(path: bytes, size: int, modified_ns: int, start: int = 0, count: int | None = None) -> bytes:
    """Return `count` bytes (all) from `start` on of a regular file of `size` bytes, last modified at `modified_ns`.

    Raises LoaderError E-CHANGED if the file has changed, or is written to meanwhile; OSError if it cannot be read.
    Makes five system calls.
    """
    fd = os.open(path, _READ_FLAGS)
    try:
        status = os.fstat(fd)
        if status.st_size != size or mtime_ns(status) != modified_ns or not stat.S_ISREG(status.st_mode):
            raise LoaderError("E-CHANGED", _describe_change(status, size), path=path)
        wanted = size if count is None else count
        content = os.pread(fd, wanted, start)
        while len(content) < wanted:  # over 2 GiB, or a signal during a read over the network
            more = os.pread(fd, wanted - len(content), start + len(content))
            if not more:
                raise LoaderError("E-CHANGED", f"the file shrank from {size:,} bytes while it was read", path=path)
            content += more
        after = os.fstat(fd)
        if after.st_size != size or mtime_ns(after) != modified_ns:
            raise LoaderError("E-CHANGED", "the file was written to while it was read", path=path)
        return content
    finally:
        os.close(fd)


def _describe_change(status: os.stat_result, size: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "no longer a regular file"
    if status.st_size != size:
        return f"{status.st_size:,} bytes now, {size:,} when it was indexed"
    return "modified since it was indexed"


def read_error(error: OSError, path: bytes) -> LoaderError:
    """Return the LoaderError for an OSError about a file or folder of a data set."""
    code = _CODES.get(error.errno or 0, "E-READ")
    return LoaderError(code, error.strerror or str(error), path=path)


def decode_text(data: bytes, errors: str = "surrogateescape") -> str:
    """Return the text of a file, decoded according to its byte order mark.

    errors: as in bytes.decode. Truncated UTF-16 always raises UnicodeDecodeError.
    """
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16")
    return data.decode("utf-8-sig", errors)
