"""Looks up sizes and times of many files, in threads."""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import MappingProxyType

from penstock.loaders.data.remote.object_store import ObjectStore, RemoteObject, is_url
from penstock.loaders.data.remote.path_or_url import find_object
from penstock.loaders.data.samples.version import MISSING, Version
from penstock.loaders.system.file_read import TRANSIENT, read_error, with_retries

THREADS = 32  # for network storage; on a local disk they take no more processor time than one
REMOTE_THREADS = 64
Stats = tuple["array[int]", "array[int]"]


def stat_files(
    prefix: bytes,
    chunks: Iterable[list[bytes]],
    show: Callable[[int], None] = lambda done: None,
    listed: Mapping[bytes, RemoteObject | None] = MappingProxyType({}),
) -> Stats:
    """Return sizes and modification times (ns) of the files prefix + name, chunk by chunk; MISSING for a missing one.

    Of URLs it is the version instead of the time. show: called with the number of files done. listed: URLs that are
    known already. Raises LoaderError for storage that fails.
    """
    sizes, times = array("Q"), array("q")
    if is_url(prefix):
        store = ObjectStore()
        with ThreadPoolExecutor(REMOTE_THREADS) as pool:
            for names in chunks:
                known = {prefix + name: listed.get(prefix + name) for name in names}
                unknown = [url for url, found in known.items() if found is None]
                known |= zip(unknown, pool.map(partial(find_object, store), unknown), strict=True)
                for name in names:
                    found = known[prefix + name] or RemoteObject(0, MISSING)
                    sizes.append(found.size)
                    times.append(found.version.number)
                show(len(sizes))
        return sizes, times
    waiting: deque[Future[Stats]] = deque()

    def keep(stats: Stats) -> None:
        sizes.extend(stats[0])
        times.extend(stats[1])
        show(len(sizes))

    with ThreadPoolExecutor(THREADS) as pool:
        for names in chunks:
            waiting.append(pool.submit(_stat_chunk, prefix, names))
            if len(waiting) > 2 * THREADS:
                keep(waiting.popleft().result())
        for future in waiting:
            keep(future.result())
    return sizes, times


def _stat_chunk(prefix: bytes, names: list[bytes]) -> Stats:
    """Return sizes and times of the files prefix + name."""
    sizes, times = array("Q"), array("q")
    for name in names:
        size, modified_ns = _stat(prefix + name)
        sizes.append(size)
        times.append(modified_ns)
    return sizes, times


def _stat(path: bytes) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno not in TRANSIENT:
            return 0, MISSING.number
        try:
            status = with_retries(lambda: os.stat(path))
        except OSError as again:
            raise read_error(again, path) from again
    version = Version.of_file(status)
    return (0 if version is MISSING else status.st_size), version.number
