"""Looks up sizes and versions of many files or objects."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType

from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.remote.path_or_url import find_object
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.loaders.data.samples.file_stats import Show, Stats, is_unchanged, stat_files
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.version import MISSING

REMOTE_THREADS = 64
Listed = Mapping[bytes, RemoteObject | None]  # known sizes and versions of objects, by URL
NONE_LISTED: Listed = MappingProxyType({})
LookUp = Callable[[bytes, Iterable[list[bytes]], Show], Stats]  # as stat_places


def stat_places(
    prefix: bytes,
    chunks: Iterable[list[bytes]],
    show: Show = lambda done: None,
    listed: Listed = NONE_LISTED,
    access: Access = DEFAULT,
) -> Stats:
    """Return sizes and versions of the files or objects prefix + name, as stat_files does.

    Raises LoaderError if the storage fails.
    """
    return stat_objects(prefix, chunks, show, listed, access) if is_url(prefix) else stat_files(prefix, chunks, show)


def stat_objects(
    prefix: bytes,
    chunks: Iterable[list[bytes]],
    show: Show = lambda done: None,
    listed: Listed = NONE_LISTED,
    access: Access = DEFAULT,
) -> Stats:
    """Return sizes and versions of the objects prefix + name, as stat_files does for files."""
    sizes, versions, times, store = array("Q"), array("q"), array("q"), ObjectStore(access)
    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        for names in chunks:
            known = {prefix + name: listed.get(prefix + name) for name in names}
            unknown = [url for url, found in known.items() if found is None]
            known |= zip(unknown, pool.map(partial(find_object, store), unknown), strict=True)
            for name in names:
                found = known[prefix + name] or RemoteObject(0, MISSING)
                sizes.append(found.size)
                versions.append(found.version.number)
                times.append(found.version.ctime_ns)
            show(len(sizes))
    return sizes, versions, times


def is_current(samples: Samples, access: Access, *, every: bool = True) -> bool:
    """Return whether indexed files or objects are unchanged, see is_unchanged."""
    stat = partial(stat_objects, access=access) if samples.are_objects else stat_files
    return is_unchanged(samples, every=every, stat=stat)
