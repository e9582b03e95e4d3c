"""Saves the indexes of folders between runs, and says when a saved one may be used."""

from __future__ import annotations

import contextlib
import hashlib
import os
import weakref
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from penstock.loaders.sources.folder_index import DamagedIndexError, FolderIndex
from penstock.loaders.sources.folder_index_builder import SCAN_RULES
from penstock.loaders.sources.folder_scan import KNOWN_FOLDER, NOT_REGULAR
from penstock.loaders.system.durable_file import remove_leftovers, replace_file
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
    usable = index.root == os.path.realpath(root) and _by_these_rules(index) and still_true(index, root)
    return index if usable else None


def _by_these_rules(index: FolderIndex) -> bool:
    """Return whether a scan would choose the same images and classes now, where an older version made the index."""
    header = index.header
    doubtful = header.skipped.keys() & {NOT_REGULAR, KNOWN_FOLDER} or (header.flat and index.num_folders > 1)
    return header.rules == SCAN_RULES or not doubtful


def still_true(index: FolderIndex, root: bytes) -> bool:
    """Return whether `root` is as it was scanned.

    Compares each folder's inode and modification time, and size and time of NUM_SAMPLED_FILES files.

    A file that is added, removed or renamed changes its folder's mtime. One that is overwritten in place does not; if
    it is not among the sampled ones, reading it raises E-CHANGED.
    """
    try:
        for number in range(index.num_folders):
            status = os.stat(os.path.join(root, index.folder(number)))
            if (status.st_mtime_ns, status.st_ino) != (index.folder_mtimes[number], index.folder_inodes[number]):
                return False
        for image in np.unique(np.linspace(0, index.num_files - 1, NUM_SAMPLED_FILES).astype(int)).tolist():
            status = os.stat(os.path.join(root, index.relative_path(image)))
            if (status.st_size, status.st_mtime_ns) != (index.size(image), index.mtime_ns(image)):
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
            remove_leftovers(folder, rb"\w+\.index")  # of all data sets: one may never be scanned again
            replace_file(path, write)
            return FolderIndex(path, verify=False)
    return _in_memory(write)


def _in_memory(write: Write) -> FolderIndex:
    """Write an index to a memfd. Workers open it through /proc, and nothing is left however this process ends."""
    try:
        fd = os.memfd_create("penstock-index", os.MFD_CLOEXEC)
        with open(fd, "wb", closefd=False) as file:
            write(file)
        index = FolderIndex(b"/proc/%d/fd/%d" % (os.getpid(), fd), verify=False)
    except (OSError, DamagedIndexError) as error:
        raise LoaderError("E-NOSPC", f"nowhere to put the index of the folder: {error}") from error
    weakref.finalize(index, os.close, fd)
    return index
