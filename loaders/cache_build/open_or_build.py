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

SOURCE_OPTIONS = ("cache", "encoding")  # that prepare_source takes in addition to the source


def prepare_whole(
    source: Source, cache: str | os.PathLike[str] | None = None, encoding: Encoding | None = None
) -> Source:
    """Return `source` over the cache of the whole data that it shows, which all its views share; as prepare_source."""
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
    """Return the cache at `cache` that stands for `source`, built with a progress bar if it is not there.

    What is there must be of this source as each of its files is now, and of `encoding` if that is given; if it is not,
    a UserWarning reports a cache that is lossy or holds pixels. Raises ValueError without a path for a source that is
    no cache, LoaderError E-STALE, E-CHANGED for other images or classes than the source was opened with, and as
    build_cache does.
    """
    checked_encoding(encoding)
    if is_cache(source):
        if cache is not None or encoding is not None:
            raise ValueError("the source is already a cache: leave out cache and encoding")
        return source
    if cache is None:
        raise ValueError(
            "backend 'hdf5' reads a cache: pass cache='data.h5' (--cache data.h5), which is built on first use, or the "
            "path of a cache that `penstock cache build` made as the source"
        )
    if not isinstance(cache, (str, bytes, os.PathLike)):
        raise ValueError(f"cache must be a path, got {shown(cache)}")
    path = real_place(cache)
    refuse_inside(source, path)
    there = _open_complete(path)
    if there and has_fields(source) and not has_fields(there) and isinstance(source, Data) and not source.is_joined:
        # A cache of the images alone: the fields are looked up next to it.
        refuse_resized_fields(source, there.about[0].coded)
        return source.with_readers([prepare_source(source.parts[0], cache, encoding)])
    if there is None:
        with BuildDisplay(len(source)) as progress:
            build_cache(source, path, encoding, progress=progress)
        there = open_cache(path)
    else:
        _refuse_stale(there, source, encoding)
    if len(there) != len(source) or there.classes != source.classes:  # the caller has counted and numbered them
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
    """Say what a cache is that is not the source's own JPEGs, with what it takes and loses."""
    stored, source_bytes = (sum(getattr(a, name) for a in cache.about) for name in ("payload_bytes", "source_bytes"))
    known = [about.psnr_db for about in cache.about if about.psnr_db is not None]
    psnr = f", PSNR {sum(known) / len(known):.1f} dB against the source" if known else ""
    coded = cache.about[0].coded
    return (
        f"the cache {printable(cache.files[0].path)} is {coded.describe()}{psnr}, {size_text(stored)} for "
        f"{size_text(source_bytes)} of images: pass encoding={coded!r} to say that this is meant"
    )


def _open_complete(path: bytes) -> Hdf5Cache | None:
    """Open the cache at `path`; None for what build_cache is to judge, if only to say what is wrong with it."""
    try:
        return open_cache(path)
    except LoaderError:
        if os.path.exists(os.path.join(path, MANIFEST)):
            raise
        return None
