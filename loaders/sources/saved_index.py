"""Saves the indexes of folders between runs, and says when a saved one may be used."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from penstock.loaders.sources.folder_index import DamagedIndexError, FolderIndex
from penstock.loaders.system.durable_file import replace_file
from penstock.loaders.system.file_read import mtime_ns
from penstock.pipelines.errors import LoaderError

Write = Callable[[BinaryIO], None]
NUM_SAMPLED_FILES = 256


def cache_folder() -> bytes | None:
    """Return `$XDG_CACHE_HOME/penstock` or `~/.cache/penstock`, made where missing; None where it cannot be trusted.

    It is refused where someone else owns it: an index says which files are read.
    """
    base = os.environb.get(b"XDG_CACHE_HOME", b"")
    if not os.path.isabs(base):  # a relative one is to be ignored, says the XDG specification
        base = os.path.join(os.path.expanduser(b"~"), b".cache")
    if not os.path.isabs(base):
        return None
    folder = os.path.join(base, b"penstock")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid != os.geteuid():
            return None
        if status.st_mode & 0o077:
            os.chmod(folder, 0o700)
    except OSError:
        return None
    return folder


def index_name(root: bytes, *, follow_symlinks: bool) -> bytes:
    """Name the index of `root` by a digest of its real path, its inode and the option that changes the scan.

    The inode keeps apart the copies that the machines of a cluster hold at the same path, where they share a home.
    """
    digest = hashlib.blake2b(os.path.realpath(root), digest_size=16)
    digest.update(b"\0%d %d" % (os.stat(root).st_ino, follow_symlinks))
    return digest.hexdigest().encode() + b".index"


def load_index(root: bytes, name: bytes) -> FolderIndex | None:
    """Open the saved index of `root`; None where there is none that is whole and still true."""
    folder = cache_folder()
    if folder is None:
        return None
    path = os.path.join(folder, name)
    try:
        if os.stat(path).st_uid != os.geteuid():
            return None
        index = FolderIndex(path)
    except (OSError, DamagedIndexError):
        return None
    return index if index.root == os.path.realpath(root) and still_true(index, root) else None


def still_true(index: FolderIndex, root: bytes, *, every_file: bool = False) -> bool:
    """Return whether `root` is as it was scanned.

    Compares each folder's inode and times, and size and time of `every_file` (6 us each where the kernel knows them) or
    of NUM_SAMPLED_FILES.

    A file that is added, removed or renamed changes its folder's times; the mtime can be put back (tar, cp -a), the
    ctime cannot. One that is overwritten in place changes neither; if it is not among the sampled ones, reading it
    raises E-CHANGED.
    """
    count = index.num_files
    some = np.unique(np.linspace(0, count - 1, NUM_SAMPLED_FILES).astype(int)).tolist()
    prefix = root.rstrip(b"/") + b"/"
    try:
        for number in range(index.num_folders):
            status = os.stat(prefix + index.folder(number))
            known = index.folder_mtimes[number], index.folder_ctimes[number], index.folder_inodes[number]
            if (status.st_mtime_ns, status.st_ctime_ns, status.st_ino) != known:
                return False
        for image in range(count) if every_file else some:
            status = os.stat(prefix + index.relative_path(image))
            if status.st_size != index.size(image) or mtime_ns(status) != index.mtime_ns(image):
                return False
    except OSError:
        return False
    return True


def save_index(name: bytes, write: Write) -> FolderIndex:
    """Save an index with `write` and map it: in the cache folder, or in memory where there is none to write to."""
    folder = cache_folder()
    if folder is not None:
        with contextlib.suppress(OSError, DamagedIndexError):
            path = os.path.join(folder, name)
            # Leftovers of all data sets: one may never be scanned again.
            replace_file(path, write, leftovers=rb"\w+\.index")
            return FolderIndex(path, verify=False)
    return _in_memory(write)


def drop_index(index: FolderIndex) -> None:
    """Remove a saved index that is true no longer, so that the folder is scanned when it is opened again."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(index.path), os.fstat(index.fd)):  # what took its place may be true
            os.unlink(index.path)


def _in_memory(write: Write) -> FolderIndex:
    """Write an index to a memfd. Workers open it through /proc, and nothing is left however this process ends."""
    try:
        with open(os.memfd_create("penstock-index", os.MFD_CLOEXEC), "wb") as file:
            write(file)
            return FolderIndex(b"/proc/self/fd/%d" % file.fileno(), verify=False)
    except (OSError, DamagedIndexError) as error:
        raise LoaderError("E-NOSPC", f"nowhere to put the index of the folder: {error}") from error
