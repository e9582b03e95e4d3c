"""Copies whole objects to a local folder, for kinds of data that cannot be read by ranges."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import BinaryIO

from filelock import FileLock

from penstock.loaders.data.remote.object_store import ObjectStore, is_url, warn_of_no_version
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.loaders.data.remote.remote_source import RemoteOptions
from penstock.loaders.system.durable_file import make_private_folder, replace_file, write_all
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.pipelines.errors import LoaderError, hide_secrets, printable, size_text

_PART_BYTES = 8 << 20
_one_at_a_time = Lock()  # each object uses all allowed requests


def copy_urls(paths: list[bytes], options: RemoteOptions) -> list[bytes]:
    """Return the paths of local copies of URLs; file paths unchanged. Raises as copy_whole."""
    if not is_url(paths[0]):
        return paths
    _cache_folder(paths[0], options)
    with ThreadPoolExecutor(options.first_requests) as pool:
        found = list(pool.map(ObjectStore(options).stat, map(bytes.decode, paths)))
    _refuse_large(sum(about.size for about in found), options)
    return [copy_whole(url, options, found=about) for url, about in zip(paths, found, strict=True)]


def copy_whole(
    url: bytes,
    options: RemoteOptions,
    folder: bytes | None = None,
    *,
    found: RemoteObject | None = None,
    store: ObjectStore | None = None,
    show_after_s: float = SHOW_AFTER_S,
) -> bytes:
    """Return the path of a local copy of an object: an existing one, or a new one, made by ranges in parallel.

    It is in `folder`, by default a folder below `options.local_cache` named after URL and version, so that a replaced
    object is copied again. Its time is derived from the version, so copies on two machines count as the same.
    Processes wait for each other. found: the object, if known. store: reads it. show_after_s: delay of the progress
    bar.

    Raises LoaderError: E-MISUSE without local_cache, E-NOSPC, E-CHANGED for an object replaced during the copy, and as
    ObjectStore.
    """
    name, cache_folder, store = hide_secrets(url), _cache_folder(url, options), store or ObjectStore(options)
    found = found or store.stat(url.decode())
    if folder is None:
        digest = hashlib.blake2b(name + b" %d %d" % (found.size, found.version.number), digest_size=16).hexdigest()
        folder = os.path.join(cache_folder, digest.encode())
    path = os.path.join(folder, os.path.basename(name))

    def is_there() -> bool:
        return found.version.is_known and os.path.exists(path) and os.path.getsize(path) == found.size

    if is_there():
        return path
    if not found.version.is_known:
        warn_of_no_version(url)
    try:
        make_private_folder(folder)
        with _one_at_a_time, FileLock(os.fsdecode(folder + b".lock"), mode=0o600):
            if not is_there():
                _refuse_large(found.size + sum(entry.stat().st_size for entry in os.scandir(folder)), options)
                bar = ProgressBar("copying", show_after_s=show_after_s)
                replace_file(path, lambda file: _fetch(store, url, found, file, options.first_requests, bar))
    except OSError as error:
        fix = "free disk space, or pass another local_cache folder, on a local disk"
        raise LoaderError("E-NOSPC", f"cannot copy it: {error.strerror or error}", fix=fix, path=path) from error
    return path


def _cache_folder(url: bytes, options: RemoteOptions) -> bytes:
    if options.local_cache is None:
        cause = "this kind of data cannot be read directly from a URL"
        fix = "pass local_cache=FOLDER, on a local disk with enough room: the data is copied there once"
        raise LoaderError("E-MISUSE", cause, fix=fix, path=hide_secrets(url))
    return os.path.abspath(os.fsencode(options.local_cache))


def _refuse_large(needed: int, options: RemoteOptions) -> None:
    if options.local_bytes is not None and needed > options.local_bytes:
        cause = f"a copy takes {size_text(needed)}, more than local_bytes={options.local_bytes:,}"
        fix = f"pass local_bytes={needed} or more, or no limit"
        raise LoaderError("E-NOSPC", cause, fix=fix, path=os.fsencode(options.local_cache or ""))


def _fetch(
    store: ObjectStore, url: bytes, found: RemoteObject, file: BinaryIO, requests: int, progress: ProgressBar
) -> None:
    """Write an object to an empty file."""
    lock, done = Lock(), 0
    os.posix_fallocate(file.fileno(), 0, max(1, found.size))
    os.ftruncate(file.fileno(), found.size)
    with progress as bar, ThreadPoolExecutor(requests) as pool:

        def copy_part(start: int) -> None:
            nonlocal done
            part = store.read(url.decode(), start, min(_PART_BYTES, found.size - start), found.version)
            write_all(file.fileno(), part.data, start)
            with lock:
                done += memoryview(part.data).nbytes
                bar.show(done, found.size, what=f"copying {printable(url)}")

        try:
            for _ in pool.map(copy_part, range(0, found.size, _PART_BYTES)):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if found.version.is_known:
        os.utime(file.fileno(), ns=(0, found.version.number >> 8))  # a time that every file system can store
