"""Finds the saved index of a folder, and checks whether it is still valid."""

from __future__ import annotations

import hashlib
import os

import numpy as np

from penstock.loaders.sources.folder_index import FolderIndex
from penstock.loaders.system.file_read import mtime_ns
from penstock.loaders.system.saved_columns import load_saved

NUM_SAMPLED_FILES = 256


def name_index(root: bytes, *, follow_symlinks: bool) -> bytes:
    """Return the file name of the index of `root`: a digest of its real path, its inode and the scan's option.

    The inode distinguishes copies at the same path on the machines of a cluster that share a home.
    """
    digest = hashlib.blake2b(os.path.realpath(root), digest_size=16)
    digest.update(b"\0%d %d" % (os.stat(root).st_ino, follow_symlinks))
    return digest.hexdigest().encode() + b".index"


def load_index(root: bytes, name: bytes) -> FolderIndex | None:
    """Open the saved index of `root`; None if there is none that is complete and still valid."""
    index = load_saved(name, FolderIndex)
    if index is None or index.root != os.path.realpath(root):
        return None
    return index if is_still_valid(index, root) else None


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
