"""Saves the indexes of folders between runs, and checks whether a saved one is still valid."""

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
    """Return `$XDG_CACHE_HOME/penstock` or `~/.cache/penstock`, created if missing; None if it cannot be trusted.

    A folder of another owner is refused, because an index decides which files are read.
    """
    base = os.environb.get(b"XDG_CACHE_HOME", b"")
    if not os.path.isabs(base):  # the XDG specification says to ignore a relative one
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


def name_index(root: bytes, *, follow_symlinks: bool) -> bytes:
    """Return the file name of the index of `root`: a digest of its real path, its inode and the scan's option.

    The inode distinguishes copies at the same path on the machines of a cluster that share a home.
    """
    digest = hashlib.blake2b(os.path.realpath(root), digest_size=16)
    digest.update(b"\0%d %d" % (os.stat(root).st_ino, follow_symlinks))
    return digest.hexdigest().encode() + b".index"


def load_index(root: bytes, name: bytes) -> FolderIndex | None:
    """Open the saved index of `root`; None if there is none that is complete and still valid."""
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
    return index if index.root == os.path.realpath(root) and is_still_valid(index, root) else None


def is_still_valid(index: FolderIndex, root: bytes, *, every_file: bool = False) -> bool:
    """Return whether `root` is unchanged since the scan.

    Compares inode and times of each folder, and size and time of `every_file` (6 us each if the kernel has them cached)
    or of NUM_SAMPLED_FILES.

    A file that is added, removed or renamed changes its folder's times. The mtime can be set back (tar, cp -a), the
    ctime cannot. A file that is overwritten in place changes neither; unless sampled, reading it raises E-CHANGED.
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
    """Save an index with `write` and map it: in the cache folder, or in memory if that cannot be written."""
    folder = cache_folder()
    if folder is not None:
        with contextlib.suppress(OSError, DamagedIndexError):
            path = os.path.join(folder, name)
            # Leftovers of all data sets: some are never scanned again.
            replace_file(path, write, leftovers=rb"\w+\.index")
            return FolderIndex(path, verify=False)
    return _save_in_memory(write)


def drop_index(index: FolderIndex) -> None:
    """Remove a saved index that is no longer valid, so that the next opening scans the folder."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(index.path), os.fstat(index.fd)):  # a newer index in its place may be valid
            os.unlink(index.path)


def _save_in_memory(write: Write) -> FolderIndex:
    """Write an index to a memfd. Workers open it through /proc; nothing is left behind when this process ends."""
    try:
        with open(os.memfd_create("penstock-index", os.MFD_CLOEXEC), "wb") as file:
            write(file)
            return FolderIndex(b"/proc/self/fd/%d" % file.fileno(), verify=False)
    except (OSError, DamagedIndexError) as error:
        raise LoaderError("E-NOSPC", f"there is no place for the index of the folder: {error}") from error
