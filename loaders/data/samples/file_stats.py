"""Looks up sizes and versions of many files, in threads, and checks whether indexed data has changed."""

from __future__ import annotations

import os
import stat
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.version import MIRROR_LOOKS, MISSING, stamps_of
from penstock.loaders.system.file_read import mtime_ns, read_error
from penstock.loaders.system.retries import can_heal, with_retries

THREADS = 32  # for network storage; on a local disk they take no more processor time than one
NUM_SAMPLED = 256
_CHUNK = 1024
Stats = tuple["array[int]", "array[int]", "array[int]"]  # sizes; numbers of versions; for objects, their `ctime_ns`
Show = Callable[[int], None]


def stat_files(prefix: bytes, chunks: Iterable[list[bytes]], show: Show = lambda done: None) -> Stats:
    """Return sizes and versions of the files prefix + name, chunk by chunk; MISSING for a missing one.

    show: called with the number of files done. Raises LoaderError if the storage fails.
    """
    sizes, versions = array("Q"), array("q")
    waiting: deque[Future[Stats]] = deque()

    def keep(stats: Stats) -> None:
        sizes.extend(stats[0])
        versions.extend(stats[1])
        show(len(sizes))

    with ThreadPoolExecutor(THREADS) as pool:
        for names in chunks:
            waiting.append(pool.submit(_stat_chunk, prefix, names))
            if len(waiting) > 2 * THREADS:
                keep(waiting.popleft().result())
        for future in waiting:
            keep(future.result())
    return sizes, versions, array("q")


def _stat_chunk(prefix: bytes, names: list[bytes]) -> Stats:
    sizes, versions = array("Q"), array("q")
    for name in names:
        size, version = _stat(prefix + name)
        sizes.append(size)
        versions.append(version)
    return sizes, versions, array("q")


def _stat(path: bytes) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        if not can_heal(error):
            return 0, MISSING.number
        try:
            status = with_retries(lambda: os.stat(path))
        except OSError as again:
            raise read_error(again, path) from again
    return (status.st_size, mtime_ns(status)) if stat.S_ISREG(status.st_mode) else (0, MISSING.number)


def is_unchanged(
    samples: Samples,
    *,
    every: bool = True,
    stat: Callable[[bytes, Iterable[list[bytes]]], Stats] = stat_files,
) -> bool:
    """Return whether the data is unchanged since it was indexed.

    Adding, removing or renaming a file changes the stamps of its folder, which are compared if the folder was listed.
    The mtime can be set back (tar, cp -a), the ctime cannot. Overwriting a file in place changes neither: `every`
    container is compared (6 us for a file cached by the kernel), or NUM_SAMPLED of them and of those that were missing.
    Reading a container compares it again.

    stat: looks up containers.
    """
    if samples.find_unknown() is not None:
        return False
    prefix = samples.prefix
    try:
        if any(stamps_of(os.stat(prefix + path)) != stamps for path, stamps in samples.folder_stamps()):
            return False
    except OSError:
        return False
    if samples.has_stamps:
        return all(container.is_unchanged() for container in samples.containers())
    some = np.arange(samples.num_containers)
    if not every:
        missing = np.flatnonzero(samples.versions == MISSING.number)[:NUM_SAMPLED]
        some = np.union1d(np.linspace(0, len(some) - 1, NUM_SAMPLED).astype(int), missing)
    parts = (some[first : first + _CHUNK] for first in range(0, len(some), _CHUNK))
    sizes, versions, times = stat(prefix, map(samples.container_names, parts))
    are_same = np.equal(versions, samples.versions[some])
    if len(times) and len(samples.times):
        found = np.asarray(times)
        may_be_mirrors = (found == samples.times[some]) & (found != 0)
        for _ in range(MIRROR_LOOKS):
            doubtful = np.flatnonzero(~are_same & may_be_mirrors)
            if len(doubtful) == 0:
                break
            # In another order each time: mirrors that answer in turn could meet each object with the same tag again.
            doubtful = np.random.default_rng().permutation(doubtful)
            now = stat(prefix, [samples.container_names(some[doubtful])])[1]
            are_same[doubtful] = np.equal(now, samples.versions[some[doubtful]])
    return np.array_equal(sizes, samples.container_sizes[some]) and bool(are_same.all())
