"""Builds a cache: one file, or a set of shards that several processes and machines build together."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.loaders.cache_build.build_file import BuildRequest, BuiltFile, build_file, read_usable_file
from penstock.loaders.cache_build.build_progress import BuildProgress
from penstock.loaders.cache_build.build_ranks import Ranks
from penstock.loaders.cache_build.disk_space import write_errors_as_loader_errors
from penstock.loaders.data.cache.format import About, Encoding
from penstock.loaders.data.cache.shards import (
    MANIFEST,
    MAX_SHARDS,
    ShardSet,
    is_shard_name,
    read_manifest,
    shard_name,
    write_manifest,
)
from penstock.loaders.data.sources.contract import Source, field_kinds_of, refresh_source
from penstock.loaders.data.sources.data import find_whole, images_of
from penstock.loaders.system.durable_file import make_private_folder, remove_leftovers, sync_folder
from penstock.loaders.system.machine import default_workers
from penstock.loaders.system.real_path import real_place
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_bool, checked_int, shown

_OURS = re.compile(rb"(shard-\d{5}-of-\d{5}\.h5|penstock-cache\.json)(\.(lock|tmp)(\..+)?)?")


@dataclass(frozen=True, kw_only=True)
class BuiltCache:
    """A cache after a build.

    Attributes:
        path: path of the file, or of the folder of shards.
        files: the files that this process built or found complete.
        complete: whether the cache is complete now; False while other tasks of a job array build their shards.
    """

    path: bytes
    files: Sequence[BuiltFile] = field(default_factory=tuple)
    complete: bool = True


def build_cache(
    source: Source,
    dest: str | bytes | os.PathLike[str],
    encoding: Encoding | None = None,
    *,
    workers: int | None = None,
    shards: int = 1,
    ranks: Ranks | None = None,
    replace_stale: bool = False,
    wait: bool = True,
    progress: BuildProgress | None = None,
) -> BuiltCache:
    """Return the cache of `source` at `dest`; unless it is complete and fresh, build it or wait for another builder.

    encoding: by default Encoding(), lossless JPEG. workers: number of encoding processes, by default one per processor;
    0 encodes in this process. shards: number of files; with more than one, `dest` is a folder, and each of `ranks`
    builds its share. replace_stale: rebuild stale or damaged files, as `penstock cache build` does; a loader raises
    instead. A source is scanned again if one of its files changed since its scan. Raises ValueError for impossible
    numbers, LoaderError as build_file does.
    """
    if not isinstance(source, Source):
        raise ValueError(f"source must be a Source, such as open_source(path), got {shown(source)}")
    if not isinstance(dest, (str, bytes, os.PathLike)) or not os.fspath(dest):
        raise ValueError(f"dest must be a path, got {shown(dest)}")
    if not isinstance(ranks, Ranks | None):
        raise ValueError(f"ranks must be Ranks, got {shown(ranks)}")
    source = refresh_source(images_of(source))
    shards = checked_int("shards (at least one image each)", shards, 1, min(MAX_SHARDS, len(source)))
    request = BuildRequest(
        source=source,
        encoding=checked_encoding(encoding) or Encoding(),
        workers=default_workers() if workers is None else checked_int("workers", workers, 0),
        replace_stale=checked_bool("replace_stale", replace_stale),
        wait=checked_bool("wait", wait),
        progress=progress or BuildProgress(),
    )
    path = real_place(dest)
    refuse_inside(source, path)
    refuse_resized_fields(source, request.encoding)
    ranks = ranks or Ranks()
    if shards > 1:
        return _build_set(request, path, shards, ranks)
    # Ranks that can wait for each other do so: the lock lets one of them build, and the others find the file.
    return BuiltCache(path=path, files=[build_file(request, path)])


def checked_encoding(encoding: Encoding | None) -> Encoding | None:
    """Return `encoding`. Raises ValueError for anything but an Encoding or None."""
    if encoding is None or isinstance(encoding, Encoding):
        return encoding
    raise ValueError(f"encoding must be an Encoding, such as Encoding(kind='raw', resize=256), got {shown(encoding)}")


def refuse_resized_fields(source: Source, encoding: Encoding) -> None:
    """Raise ValueError for fields that would not fit the resized images."""
    moving = [name for name, kind in field_kinds_of(source).items() if kind.rules.moves and not kind.relative]
    if encoding.resize is not None and moving:
        raise ValueError(
            f"encoding resizes the images but not {', '.join(moving)}: use an Encoding without resize, or resize "
            "images and fields beforehand"
        )


def refuse_inside(source: Source, dest: bytes) -> None:
    """Raise LoaderError E-MISUSE for a cache inside the folder of its images: it would change the folder."""
    for part in find_whole(source):
        root: bytes | None = getattr(part, "root", None)
        if root is not None and (dest + b"/").startswith(os.path.realpath(root).rstrip(b"/") + b"/"):
            fix = "choose a path outside it"
            raise LoaderError("E-MISUSE", "the cache would be inside the folder of its images", fix=fix, path=dest)


def _build_set(request: BuildRequest, folder: bytes, shards: int, ranks: Ranks) -> BuiltCache:
    """Build each shard as a separate, resumable file; then write the manifest that makes them a set."""
    complete = _is_complete(request, folder, shards)
    if not complete:
        _prepare_folder(folder)
    files = [build_file(*each) for each in _request_shards(request, folder, shards, ranks.shards(shards))]
    ranks.meet()
    if not (complete and not any(file.built for file in files)) and (ranks.group is None or ranks.rank == 0):
        abouts = _read_abouts(request, folder, shards)
        if abouts is not None:
            with write_errors_as_loader_errors(folder):
                write_manifest(folder, ShardSet.of(abouts))
                _remove_others(folder, shards)
            complete = True
    ranks.meet()
    return BuiltCache(path=folder, files=files, complete=complete or ranks.group is not None)


def _request_shards(
    request: BuildRequest, folder: bytes, shards: int, numbers: Iterable[int]
) -> Iterator[tuple[BuildRequest, bytes]]:
    """Yield a build request and a path for each of `numbers`."""
    for shard in numbers:
        yield replace(request, shard=(shard, shards)), os.path.join(folder, shard_name(shard, shards))


def _read_abouts(request: BuildRequest, folder: bytes, shards: int) -> list[About] | None:
    """Return the metadata of all shards; None while one is missing. Raises LoaderError for an unusable shard."""
    found = []
    for each in _request_shards(request, folder, shards, range(shards)):
        about = read_usable_file(*each)
        if about is None:
            return None
        found.append(about)
    return found


def _is_complete(request: BuildRequest, folder: bytes, shards: int) -> bool:
    """Return whether `folder` contains a usable set. Raises LoaderError for anything that must not be replaced."""
    if not os.path.lexists(folder):
        return False
    if not os.path.isdir(folder):
        fix = "choose another name, or remove it yourself"
        raise LoaderError("E-CACHE", "a set of shards needs a folder, but this is a file", fix=fix, path=folder)
    others = [name for name in os.listdir(folder) if not _OURS.fullmatch(name)]
    if others:
        fix = "choose an empty folder"
        raise LoaderError(
            "E-CACHE", f"the folder contains other files, such as {os.fsdecode(others[0])!a}", fix=fix, path=folder
        )
    if not os.path.exists(os.path.join(folder, MANIFEST)):
        return False
    try:
        known = read_manifest(folder)
    except LoaderError:
        if not request.replace_stale:
            raise
        return False
    if len(known.digests) != shards and not request.replace_stale:
        raise LoaderError("E-STALE", f"it has {len(known.digests)} shards, but {shards} were requested", path=folder)
    abouts = _read_abouts(request, folder, shards)
    return abouts is not None and ShardSet.of(abouts) == known


def _prepare_folder(folder: bytes) -> None:
    """Make the folder and remove its manifest: an incomplete set must not be opened from now on."""
    with write_errors_as_loader_errors(folder):
        make_private_folder(folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, MANIFEST))
            sync_folder(folder)
        remove_leftovers(folder, re.escape(MANIFEST), older_than_s=0)


def _remove_others(folder: bytes, shards: int) -> None:
    """Remove the shards of an earlier set with a different number of shards."""
    names = {shard_name(shard, shards) for shard in range(shards)}
    for name in os.listdir(folder):
        if is_shard_name(name) and name not in names:
            os.unlink(os.path.join(folder, name))
