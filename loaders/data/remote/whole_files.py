"""Copies whole objects to a local folder, for kinds of data that are not read by ranges."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import BinaryIO

from filelock import FileLock

from penstock.loaders.data.remote.object_store import ObjectStore, RemoteObject, warn_of_no_version
from penstock.loaders.data.remote.remote_source import RemoteOptions
from penstock.loaders.system.durable_file import make_private_folder, replace_file, write_all
from penstock.loaders.system.progress_bar import ProgressBar
from penstock.pipelines.errors import LoaderError, hide_secrets, printable, size_text

_PART_BYTES = 8 << 20
_SHOW_AFTER_S = 1.0


def copy_whole(url: bytes, options: RemoteOptions, folder: bytes | None = None) -> bytes:
    """Return the path of a local copy of an object: one that is there, or a new one, made in ranges side by side.

    It lies in `folder`; unless given, in one below `options.local_cache` that is named after URL and version, so that a
    replaced object is copied anew. Processes wait for each other. Raises LoaderError: E-MISUSE without local_cache,
    E-NOSPC, E-CHANGED for an object that is replaced meanwhile, and those of ObjectStore.
    """
    name = hide_secrets(url)
    if options.local_cache is None:
        cause = "data of this kind is not read by URL in place"
        fix = "pass local_cache=FOLDER, on a local disk with room for it: it is copied there once"
        raise LoaderError("E-MISUSE", cause, fix=fix, path=name)
    store = ObjectStore()
    found = store.stat(url.decode())
    if folder is None:
        digest = hashlib.blake2b(name + b" %d %d" % (found.size, found.version.number), digest_size=16).hexdigest()
        folder = os.path.join(os.path.abspath(os.fsencode(options.local_cache)), digest.encode())
    path = os.path.join(folder, os.path.basename(name))
    try:
        make_private_folder(folder)
        with FileLock(os.fsdecode(folder + b".lock"), mode=0o600):
            if not found.version.is_known:
                warn_of_no_version(url)
            if not found.version.is_known or not os.path.exists(path) or os.path.getsize(path) != found.size:
                _refuse_large(folder, found.size, options.local_bytes)
                replace_file(path, lambda file: _fetch(store, url, found, file, options.requests))
    except OSError as error:
        fix = "free disk space, or pass another local_cache folder, on a local disk"
        raise LoaderError("E-NOSPC", f"cannot copy it: {error.strerror or error}", fix=fix, path=path) from error
    return path


def _refuse_large(folder: bytes, size: int, limit: int | None) -> None:
    with os.scandir(folder) as entries:
        needed = size + sum(entry.stat().st_size for entry in entries)
    if limit is not None and needed > limit:
        cause = f"a copy takes {size_text(needed)}, more than local_bytes={limit:,}"
        raise LoaderError("E-NOSPC", cause, fix=f"pass local_bytes={needed} or more, or none", path=folder)


def _fetch(store: ObjectStore, url: bytes, found: RemoteObject, file: BinaryIO, requests: int) -> None:
    """Write an object to an empty file."""
    lock, done = Lock(), 0
    os.posix_fallocate(file.fileno(), 0, max(1, found.size))
    os.ftruncate(file.fileno(), found.size)
    with ProgressBar("copying", show_after_s=_SHOW_AFTER_S) as bar, ThreadPoolExecutor(requests) as pool:

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
