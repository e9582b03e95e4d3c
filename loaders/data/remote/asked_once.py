"""Listings and lookups of a storage that one rank of a node makes, and the other ranks read."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.remote.object_stats import Listed, stat_places
from penstock.loaders.data.remote.object_store import is_url
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.loaders.data.samples.columns import SavedColumns, StoredValues, save_columns
from penstock.loaders.data.samples.file_stats import Show, Stats
from penstock.loaders.data.samples.once_per_node import is_one_of_several, once_per_node
from penstock.loaders.data.samples.version import Version
from penstock.loaders.system.saved_columns import load_saved

_COLUMNS = ("sizes", "versions", "times")  # of Stats


def list_once(what: bytes, make: Callable[[], Mapping[str, RemoteObject]]) -> dict[str, RemoteObject]:
    """Return the objects that `make` lists, by URL; `what` names the listing."""
    name = _name(b"listing", what)
    if not is_one_of_several():
        return dict(make())
    with once_per_node(name, "listing the data") as is_done:
        saved = load_saved(name, SavedColumns, verify=False) if is_done else None
        if saved is None:
            listed = dict(make())
            names = [url.encode("utf-8", "surrogateescape") for url in listed]
            columns = {
                "names": np.frombuffer(b"".join(names), np.uint8),
                "ends": np.cumsum([0, *map(len, names)]),
                "sizes": np.array([found.size for found in listed.values()], np.uint64),
                "versions": np.array([found.version.number for found in listed.values()], np.int64),
            }
            _save(name, columns)
            return listed
    text, ends, sizes, versions = (saved.columns[each].values for each in ("names", "ends", "sizes", "versions"))
    data = text.tobytes()
    urls = (data[begin:end].decode("utf-8", "surrogateescape") for begin, end in pairwise(ends.tolist()))
    found = map(RemoteObject, sizes.tolist(), map(Version.of_stored_object, versions.tolist()))
    return dict(zip(urls, found, strict=True))


def look_up_once(
    rows: Callable[[], bytes],
    listed: Listed,
    access: Access,
    prefix: bytes,
    chunks: Iterable[list[bytes]],
    show: Show,
) -> Stats:
    """Return sizes and versions as stat_places does; `rows` returns a digest of the names."""
    if not is_url(prefix) or not is_one_of_several():
        return stat_places(prefix, chunks, show, listed, access)
    name = _name(b"lookup", rows())
    with once_per_node(name, "looking up the data") as is_done:
        saved = load_saved(name, SavedColumns, verify=False) if is_done else None
        if saved is None:
            stats = stat_places(prefix, chunks, show, listed, access)
            _save(name, dict(zip(_COLUMNS, map(np.asarray, stats), strict=True)))
            return stats
    for _ in chunks:  # making them has effects
        pass
    sizes, versions, times = (saved.columns[each].values.tobytes() for each in _COLUMNS)
    return array("Q", sizes), array("q", versions), array("q", times)


def _name(kind: bytes, what: bytes) -> bytes:
    return hashlib.blake2b(b"penstock %s\0" % kind + what, digest_size=16).hexdigest().encode() + b".index"


def _save(name: bytes, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    save_columns({each: StoredValues(values) for each, values in columns.items()}, name.decode(), name)
