"""Opens the cache of a source, or builds it if there is none."""

from __future__ import annotations

import os

from penstock.loaders.cache_build.build import build_cache, checked_encoding, refuse_inside, refuse_resized_fields
from penstock.loaders.cache_build.build_file import remove_dead_builds
from penstock.loaders.cache_build.build_progress import BuildDisplay
from penstock.loaders.cache_build.freshness import why_stale
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache, open_cache
from penstock.loaders.data.cache.shards import MANIFEST
from penstock.loaders.data.sources.contract import Source, has_fields, has_targets, is_cache, refresh_source
from penstock.loaders.data.sources.data import Data
from penstock.loaders.system.real_path import real_place
from penstock.pipelines.errors import LoaderError, printable, size_text
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user

SOURCE_OPTIONS = ("cache", "encoding")  # parameters of prepare_source besides the source


def prepare_whole(
    source: Source, cache: str | os.PathLike[str] | None = None, encoding: Encoding | None = None
) -> Source:
    """Return `source` reading from the cache of its whole data, shared by all views; options as prepare_source."""
    if not isinstance(source, Data) or source.is_whole:
        prepared = prepare_source(source, cache, encoding)
        is_lost = has_targets(source) and not has_targets(prepared)
        return Data([source]).with_readers([prepared]) if is_lost else prepared
    (whole,) = source.parts
    prepared = prepare_whole(whole, cache, encoding)
    return source if prepared is whole else source.with_readers([prepared])


def prepare_source(
    source: Source, cache: str | os.PathLike[str] | None = None, encoding: Encoding | None = None
) -> Source:
    """Return the cache at `cache` in place of `source`; a missing cache is built with a progress bar.

    An existing cache must match the source's current files, and `encoding` if given. Without `encoding`, a UserWarning
    reports a cache that is lossy or contains pixels. Raises ValueError without a path for a source that is not a
    cache, LoaderError E-STALE, E-CHANGED if images or classes changed since the source was opened, and as build_cache
    does.
    """
    checked_encoding(encoding)
    if is_cache(source):
        if cache is not None or encoding is not None:
            raise ValueError("the source is already a cache: leave out cache and encoding")
        return source
    if cache is None:
        raise ValueError(
            "backend 'hdf5' needs a cache: pass cache='data.h5' (--cache data.h5), which is built on first use, or "
            "pass a cache made by `penstock cache build` as the source"
        )
    if not isinstance(cache, (str, bytes, os.PathLike)):
        raise ValueError(f"cache must be a path, got {shown(cache)}")
    path = real_place(cache)
    refuse_inside(source, path)
    there = _open_complete(path)
    if there and has_fields(source) and not has_fields(there) and isinstance(source, Data) and not source.is_joined:
        # A cache of images only: the fields come from the source.
        refuse_resized_fields(source, there.about[0].coded)
        return source.with_readers([prepare_source(source.parts[0], cache, encoding)])
    if there is None:
        with BuildDisplay(len(source)) as progress:
            build_cache(source, path, encoding, progress=progress)
        there = open_cache(path)
    else:
        _refuse_stale(there, source, encoding)
    if len(there) != len(source) or there.classes != source.classes:  # the caller uses their number and classes
        cause = f"the folder has changed since it was opened: {len(source):,} images then, {len(there):,} now"
        raise LoaderError("E-CHANGED", cause, path=getattr(source, "root", None))
    return there


def _refuse_stale(there: Hdf5Cache, source: Source, encoding: Encoding | None) -> None:
    now, coded = refresh_source(source), there.about[0].coded
    for shard, file in enumerate(there.files):
        reason = why_stale(file.about, now, encoding or coded, (shard, len(there.files)))
        if reason:
            raise LoaderError("E-STALE", reason, path=file.path)
        remove_dead_builds(file.path)
    if encoding is None and coded != Encoding():
        warn_user(_describe_kind(there))


def _describe_kind(cache: Hdf5Cache) -> str:
    """Describe a cache that does not store the source's own JPEGs, with its size and PSNR."""
    stored, source_bytes = (sum(getattr(a, name) for a in cache.about) for name in ("payload_bytes", "source_bytes"))
    known = [about.psnr_db for about in cache.about if about.psnr_db is not None]
    psnr = f", PSNR {sum(known) / len(known):.1f} dB against the source" if known else ""
    coded = cache.about[0].coded
    return (
        f"the cache {printable(cache.files[0].path)} is {coded.describe()}{psnr}, {size_text(stored)} for "
        f"{size_text(source_bytes)} of images: pass encoding={coded!r} to confirm that this is intended"
    )


def _open_complete(path: bytes) -> Hdf5Cache | None:
    """Open the cache at `path`; None if build_cache has to build it or report the error."""
    try:
        return open_cache(path)
    except LoaderError:
        if os.path.exists(os.path.join(path, MANIFEST)):
            raise
        return None
