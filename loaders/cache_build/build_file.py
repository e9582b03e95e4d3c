"""Builds a cache file: under a lock, in a private folder, verified, then moved into place atomically."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module

import numpy as np

from penstock.loaders.cache_build.build_progress import BuildProgress
from penstock.loaders.cache_build.chunks import encode_in_order, picture_names
from penstock.loaders.cache_build.disk_space import ensure_room, write_errors_as_loader_errors
from penstock.loaders.cache_build.freshness import build_key, build_versions, is_improvable, source_identity, why_stale
from penstock.loaders.cache_build.hdf5_frame import Tables, frame_bytes, is_cache_file, table_digests
from penstock.loaders.cache_build.lock import BuildLock
from penstock.loaders.cache_build.psnr import sample_indices, sample_psnr
from penstock.loaders.cache_build.unfinished import SYNC_BYTES, BuildFolder, find_folders, remove_folder, take_folder
from penstock.loaders.data.cache.format import FIELDS, FIELDS_SCHEMA, RECORD, SCHEMA, About, Encoding, cache_fingerprint
from penstock.loaders.data.cache.hdf5_cache import is_cache_set, open_cache
from penstock.loaders.data.cache.shards import shard_range
from penstock.loaders.data.fields.packed_fields import PackedField, pack_fields
from penstock.loaders.data.sources.contract import Source, has_fields, sample_name
from penstock.loaders.system.file_read import read_error
from penstock.loaders.system.machine import default_workers
from penstock.loaders.system.real_path import real_place
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.library import CURE, native_library

_LOSSLESS_RATIO = 1.03  # upper limit of stored bytes / source bytes for a set of photos
_TABLE_BYTES = RECORD.itemsize + 8 + 64  # table bytes per image, including its name
_FORECAST = 0.8  # a build stops if even this share of the forecast from the images so far does not fit
_NO_RECODER = (
    "the native library is missing: JPEGs are stored without restart markers, so each is read and decoded whole. "
    f"Build the library ({CURE}), then build the cache again so that only crops are decoded"
)
_COUNTED = ("file", "strips", "pixels")  # indexed by FILE, STRIPS, PIXELS


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """Settings of one build.

    Attributes:
        source: images and labels.
        encoding: how images are stored.
        workers: number of encoding processes; 0 encodes in this process.
        shard: (number of this shard, number of shards).
        replace_stale: whether to rebuild a damaged or stale file instead of raising.
        wait: whether to wait for another builder instead of raising.
        progress: receives the progress of the build.
    """

    source: Source
    encoding: Encoding = field(default_factory=Encoding)
    workers: int = field(default_factory=default_workers)
    shard: tuple[int, int] = (0, 1)
    replace_stale: bool = False
    wait: bool = True
    progress: BuildProgress = field(default_factory=BuildProgress)

    @property
    def range(self) -> tuple[int, int]:
        """First sample of the shard, and the one after its last."""
        return shard_range(*self.shard, len(self.source))


@dataclass(frozen=True, kw_only=True)
class BuiltFile:
    """A complete cache file.

    Attributes:
        path: path of the file.
        about: its metadata.
        built: number of samples encoded by this build.
        resumed: number of samples taken over from an unfinished build.
        seconds: time of the build.
    """

    path: bytes
    about: About
    built: int = 0
    resumed: int = 0
    seconds: float = 0.0


def build_file(request: BuildRequest, path: str | bytes | os.PathLike[str]) -> BuiltFile:
    """Return the cache file at `path`; build it unless it is complete and fresh.

    Only one builder works at a time; others wait and then use the finished file. A killed builder leaves
    `path.tmp.RANDOM`, and the next builder resumes from it. Raises LoaderError: E-CACHE for a file that is not a
    penstock cache, one that is damaged (unless `replace_stale`) or, without `wait`, one that is being built; E-STALE
    unless `replace_stale`; E-MISUSE for a missing folder; E-NOSPC, E-ACCESS, E-DEPENDENCY; and errors of the source.
    """
    dest = real_place(path)
    build_versions()  # raises without h5py, before any work
    about = read_usable_file(request, dest)
    if about is not None:
        remove_dead_builds(dest)
        return BuiltFile(path=dest, about=about)
    import_module("penstock.pipelines.sample.decode_pillow")  # raises without Pillow: EXIF and unusual images need it
    lock = BuildLock(dest + b".lock")
    try:
        with lock:
            with write_errors_as_loader_errors(dest):
                lock.acquire(wait=request.wait, on_wait=request.progress.waiting)
            about = read_usable_file(request, dest)
            if about is not None:
                _remove_unfinished(dest)
                return BuiltFile(path=dest, about=about)
            return _build(request, dest, lock)
    finally:
        lock.release()  # Ctrl-C may have ended the first


def read_usable_file(request: BuildRequest, dest: bytes) -> About | None:
    """Return the metadata of the file at `dest`; None if it must be built. Raises as build_file."""
    try:
        status = os.lstat(dest)
        ours = is_cache_file(dest)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        ours = False
    except OSError as error:
        raise read_error(error, dest) from error
    if is_cache_set(dest):
        fix = "pass the number of its shards (--shards), choose another name, or wait until it is complete"
        raise LoaderError("E-CACHE", "a set of shards exists here, complete or being built", fix=fix, path=dest)
    if not ours:
        fix = "choose another name, or remove it yourself"
        raise LoaderError("E-CACHE", "the existing file is not a cache and is not replaced", fix=fix, path=dest)
    try:
        about = open_cache(dest).about[0]
    except LoaderError as error:
        if request.replace_stale and error.code == "E-CACHE" and status.st_uid == os.geteuid():
            return None
        raise
    reason = why_stale(about, request.source, request.encoding, request.shard)
    if request.replace_stale:
        return None if reason or is_improvable(about) else about
    if reason:
        raise LoaderError("E-STALE", reason, path=dest)
    return about


def remove_dead_builds(dest: bytes) -> None:
    """Remove leftovers of dead builders of a finished cache, where permissions allow."""
    with contextlib.suppress(OSError, LoaderError):
        if find_folders(dest) or os.path.exists(dest + b".lock"):
            lock = BuildLock(dest + b".lock")
            try:
                with lock:
                    lock.acquire(wait=False)
                    _remove_unfinished(dest)
            finally:
                lock.release()  # Ctrl-C may have ended the first


def _build(request: BuildRequest, dest: bytes, lock: BuildLock) -> BuiltFile:
    started_s = time.monotonic()
    _check_labels(request.source, *request.range)
    try:
        with write_errors_as_loader_errors(dest):
            key = build_key(request.source, request.encoding, request.shard)
            folder = take_folder(dest, key, 1 + len(picture_names(request.source)))
        with contextlib.closing(folder):
            resumed = folder.num_samples
            _fill(request, dest, folder, lock)
            about = _finish(request, dest, folder)
            request.progress.stage("verifying")
            _verify(folder)
            lock.check()
            with write_errors_as_loader_errors(dest):
                folder.commit(dest)
    except LoaderError as error:
        if error.code == "E-NOSPC":
            _remove_unfinished(dest)
        raise
    seconds = time.monotonic() - started_s
    return BuiltFile(path=dest, about=about, built=about.samples - resumed, resumed=resumed, seconds=seconds)


def _remove_unfinished(dest: bytes) -> None:
    """Remove unfinished caches. Call it under the lock: then all their builders are dead."""
    for folder in find_folders(dest):
        remove_folder(folder)


def _check_labels(source: Source, first: int, end: int) -> None:
    """Raise LoaderError E-DATASET for labels without a class: readers refuse a cache with such labels."""
    labels = source.labels(np.arange(first, end))
    strange = np.flatnonzero((labels < 0) | (labels >= len(source.classes)))
    if len(strange):
        sample = first + int(strange[0])
        cause = f"its label is {int(labels[strange[0]])}, but the source has {len(source.classes)} classes"
        raise LoaderError("E-DATASET", cause, fix="correct the labels or classes of the source", sample=sample)


def _fill(request: BuildRequest, dest: bytes, folder: BuildFolder, lock: BuildLock) -> None:
    """Encode and store the samples that are not in the folder yet."""
    first, end = request.range
    if request.encoding.kind == "jpeg" and native_library() is None:
        request.progress.note(_NO_RECODER)
    request.progress.begin(dest, end - first, folder.num_samples)
    _ensure_room(request, dest, folder, estimate=_estimate_bytes(request))
    checked = folder.num_bytes
    chunks = encode_in_order(request.source, request.encoding, first + folder.num_samples, end, request.workers)
    with contextlib.closing(chunks):
        for chunk in chunks:
            lock.check()
            with write_errors_as_loader_errors(dest):
                folder.append(chunk)
            request.progress.advance(chunk.task.end - chunk.task.first, len(chunk.payload))
            if folder.num_bytes - checked >= SYNC_BYTES:
                checked = folder.num_bytes
                mean = folder.num_bytes / folder.num_samples
                _ensure_room(request, dest, folder, estimate=int(_FORECAST * mean * (end - first)))


def _estimate_bytes(request: BuildRequest) -> int:
    """Estimate the bytes of the payload; 0 if unknown in advance."""
    num_bytes: int | None = getattr(request.source, "num_bytes", None)
    if num_bytes is None or not (request.encoding.kind == "jpeg" and request.encoding.lossless):
        return 0
    first, end = request.range
    return int(_LOSSLESS_RATIO * num_bytes * (end - first) / len(request.source))


def _ensure_room(request: BuildRequest, dest: bytes, folder: BuildFolder, estimate: int) -> None:
    first, end = request.range
    total = max(estimate, folder.num_bytes) + _TABLE_BYTES * (end - first)
    with write_errors_as_loader_errors(dest):
        ensure_room(folder.path, dest, folder.num_bytes, total)


def _finish(request: BuildRequest, dest: bytes, folder: BuildFolder) -> About:
    """Complete the cache file in the folder; return its metadata."""
    names = [sample_name(request.source, index) for index in range(*request.range)]
    tables: Tables = {
        "samples": folder.records(),
        "names": np.frombuffer(b"".join(names), np.uint8),
        "name_ends": np.cumsum([len(name) for name in names]).astype("<i8"),
    }
    fields: list[PackedField] = []
    if has_fields(request.source):
        fields, packed = pack_fields(request.source, *request.range)
        tables = {**tables, FIELDS: packed}
    about = _make_about(request, folder, tables, fields)
    with write_errors_as_loader_errors(dest):
        ensure_room(folder.path, dest, folder.num_bytes, folder.num_bytes + frame_bytes(tables))
        folder.finish(tables, about)
    if request.encoding.lossless:
        return about
    request.progress.stage("comparing")
    first = request.range[0]
    # Read through the finished file, as a reader will.
    indices = [first + number for number in sample_indices(about.samples)]
    psnr = sample_psnr(request.source, open_cache(folder.data_path), indices, first=first)
    about = replace(about, psnr_db=None if psnr is None else round(psnr, 3))
    with write_errors_as_loader_errors(dest):
        folder.finish(tables, about)
    return about


def _make_about(request: BuildRequest, folder: BuildFolder, tables: Tables, fields: list[PackedField]) -> About:
    source, images = request.source, tables["samples"][: folder.num_samples]
    kinds = np.bincount(images["kind"], minlength=len(_COUNTED))
    counts = dict(zip(_COUNTED, kinds.tolist(), strict=True))
    kept: Counter[str] = Counter()
    bad = 0
    for block in folder.blocks:
        kept.update(block.kept)
        bad += sum(block.bad.values())
    return About(
        schema=FIELDS_SCHEMA if fields else SCHEMA,
        fields=fields,
        encoding=asdict(request.encoding),
        fingerprint=cache_fingerprint(source.fingerprint, request.encoding),
        classes=[name.decode("utf-8", "surrogateescape") for name in source.classes],
        source=source_identity(source),
        shard=[*request.shard, *request.range],
        samples=folder.num_samples,
        payload_bytes=folder.num_bytes,
        source_bytes=sum(block.source_bytes for block in folder.blocks),
        counts={**counts, "bad": bad},
        kept=dict(kept),
        digests=table_digests(tables),
        versions=build_versions(),
    )


def _verify(folder: BuildFolder) -> None:
    """Read the whole file back: structure and tables as a reader does, the payload by the blocks' CRCs.

    The encoder has already checked, on the same bytes, that the samples match their records. Raises LoaderError
    E-CACHE.
    """
    open_cache(folder.data_path)
    if not folder.is_whole():
        cause = "the file does not read back as it was written"
        raise LoaderError("E-CACHE", cause, fix="check the storage, then build it again", path=folder.data_path)
