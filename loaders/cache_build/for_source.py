"""The cache that stands for a source: opened where it is there, built where it is not."""

from __future__ import annotations

import os

from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache.hdf5_cache import known_cache, open_cache
from penstock.loaders.cache_build.build_set import build_cache
from penstock.loaders.cache_build.progress import BuildDisplay
from penstock.loaders.sources.contract import Source, WindowSource

SOURCE_OPTIONS = ("cache", "encoding")  # which prepare_source takes beside the source


def prepare_source(
    source: Source, cache: str | os.PathLike[str] | None = None, encoding: Encoding | None = None
) -> Source:
    """Return the cache at `cache` that stands for `source`, built with a progress bar if it is not there.

    What is there must be of this source as it is now, and of `encoding` if that is given. Raises ValueError without a
    path for a source that is no cache, LoaderError E-STALE and as build_cache does.
    """
    if encoding is not None and not isinstance(encoding, Encoding):
        raise ValueError(f"encoding is an Encoding, such as Encoding(kind='raw', resize=256), not {encoding!r}")
    if isinstance(source, WindowSource):
        if cache is not None or encoding is not None:
            raise ValueError("the source is a cache already: leave out cache and encoding")
        return source
    if cache is None:
        raise ValueError(
            "backend 'hdf5' reads a cache: pass cache='data.h5' (--cache data.h5), which is built on first use, or the "
            "path of a cache that `penstock cache build` made as the source"
        )
    there = known_cache(cache)
    wanted = encoding or (there.coded if there else Encoding())
    with BuildDisplay(len(source)) as progress:
        build_cache(source, cache, wanted, shards=there.shard[1] if there else 1, progress=progress)
    return open_cache(cache)
