"""Finds the cache that stands for a source: opens it where it is there, builds it where it is not."""

from __future__ import annotations

import os

from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache.hdf5_cache import Hdf5Cache, open_cache
from penstock.loaders.cache.shards import MANIFEST
from penstock.loaders.cache_build.build_file import remove_dead_builds
from penstock.loaders.cache_build.build_set import build_cache, refuse_inside
from penstock.loaders.cache_build.freshness import why_stale
from penstock.loaders.cache_build.progress import BuildDisplay
from penstock.loaders.sources.contract import Source, WindowSource
from penstock.loaders.system.needs import real_path
from penstock.pipelines.errors import LoaderError

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
    path = real_path(cache)
    refuse_inside(source, path)
    there = _opened(path)
    if there is None:
        with BuildDisplay(len(source)) as progress:
            build_cache(source, path, encoding, progress=progress)
        return open_cache(path)
    for shard, file in enumerate(there.files):
        reason = why_stale(file.about, source, encoding or there.about[0].coded, (shard, len(there.files)))
        if reason:
            raise LoaderError("E-STALE", reason, path=file.path)
        remove_dead_builds(file.path)
    return there


def _opened(path: bytes) -> Hdf5Cache | None:
    """Open the cache at `path`; None for what build_cache is to judge, if only to say what is wrong with it."""
    try:
        return open_cache(path)
    except LoaderError:
        if os.path.exists(os.path.join(path, MANIFEST)):
            raise
        return None
