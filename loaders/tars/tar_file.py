"""Opens a tar on a disk or in object storage for the scan of its headers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.loaders.remote.object_store import ObjectStore, is_url
from penstock.loaders.sources.range_index import Container
from penstock.loaders.system.file_read import mtime_ns, open_regular, read_error, with_retries
from penstock.pipelines.errors import LoaderError

_LOCAL_WINDOW = 4096  # bytes: a label next to an image often lies in the same page as the next header
_REMOTE_WINDOW = 1 << 20  # a request costs as much as some hundred kilobytes


class OpenTar(NamedTuple):
    """Hold an open tar.

    Attributes:
        container: the file as it is now.
        read: takes (start, bytes) and returns as many bytes, or fewer, but none only at the end.
        window: bytes that are worth reading at once.
    """

    container: Container
    read: Callable[[int, int], bytes]
    window: int


@contextlib.contextmanager
def open_tar(path: bytes, store: ObjectStore) -> Iterator[OpenTar]:
    """Open a tar by path or URL. Raises LoaderError, E-CHANGED if it was written to in the meantime."""
    if is_url(path):
        url = path.decode()
        found = store.stat(url)

        def read(start: int, count: int) -> bytes:
            count = min(count, found.size - start)
            return bytes(store.read(url, start, count, found.version).data) if count > 0 else b""

        yield OpenTar(Container(path, *found), read, _REMOTE_WINDOW)
        return
    try:
        fd = with_retries(lambda: open_regular(path))
        try:
            before = os.fstat(fd)
            container = Container(path, before.st_size, mtime_ns(before))
            yield OpenTar(container, lambda start, count: os.pread(fd, count, start), _LOCAL_WINDOW)
            after = os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise read_error(error, path) from error
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise LoaderError("E-CHANGED", "the tar was written to while it was indexed", path=path)
