"""Scans an image folder: its images, their order and their classes."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping

import numpy as np

from penstock.loaders.data.files.left_out import (
    BESIDE_CLASSES,
    BROKEN_LINK,
    HIDDEN,
    HIDDEN_IMAGES,
    LINK,
    NOT_REGULAR,
    SIDECAR,
    UNREAD_FORMAT,
    UNREADABLE,
    VANISHED,
    explain_name,
    is_image_name,
)
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import FOLDER_RULES, ContainerTable, LeftOut, SamplesWriter
from penstock.loaders.data.samples.version import MISSING, stamps_of
from penstock.loaders.data.sources.contract import ONE_CLASS
from penstock.loaders.system.file_read import mtime_ns, read_error
from penstock.loaders.system.retries import with_retries
from penstock.pipelines.errors import LoaderError, printable

# Folders that file systems and archivers leave next to the data; names that begin with a dot are also skipped.
FOREIGN_FOLDERS = frozenset({"lost+found", "__MACOSX", "@eaDir"})

# Image suffixes of torchvision.datasets.ImageFolder: IMG_EXTENSIONS of torchvision/datasets/folder.py.
IMAGE_FOLDER_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

KNOWN_FOLDER, KNOWN_CLASS = "folder seen before", "class folder seen before"
# What ImageFolder accepts below class folders.
LOST_TO_IMAGE_FOLDER = (HIDDEN_IMAGES, UNREAD_FORMAT, KNOWN_FOLDER, BROKEN_LINK)

UNSETTLED = MISSING.number  # time of a folder if its listing may change without a new time: never equal to a real time
# Resolution of times on some file systems: a folder that has just changed may change again without a new time.
SETTLING_NS = 2_000_000_000
_PROGRESS_INTERVAL = 1024
Subfolder = tuple[bytes, bool]  # name, whether it is a link
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ClassFolders:
    """The images below `root`: classes are its first-level folders, sorted by name (os.fsdecode).

    Images are files with one of IMAGE_SUFFIXES (upper or lower case), at any depth below their class folder. They are
    numbered by class, then by path bytes, regardless of the listing's order. A root with all images directly in it is
    flat: one class, ONE_CLASS. Otherwise images next to class folders are skipped. `writer` counts skipped entries by
    reason. Raises LoaderError E-NODATA without any image, or if the folders of a flat root contain images of a format
    that is not read. Subclasses list the files.
    """

    def __init__(self, root: bytes, indexed_root: bytes) -> None:
        self.root, self.writer = root, SamplesWriter(root=indexed_root, rules=FOLDER_RULES)
        top = ContainerTable()
        folders = self._list_root(top)
        beside, self.writer.left_out = self.writer.left_out, LeftOut()
        self._add_classes(folders)
        self.writer.flat = len(self.writer.containers) == 0 and len(top) > 0
        if self.writer.flat:
            if self.writer.classes:
                refuse_strays(root, len(top), self.writer.left_out)
            self.writer.classes = [ONE_CLASS]
            self.writer.add_files(top)
        elif len(top):
            self.writer.left_out.add(BESIDE_CLASSES, min(map(top.names.__getitem__, range(len(top)))), len(top))
        for reason, count in beside.counts.items():
            is_beside = reason in LOST_TO_IMAGE_FOLDER and len(self.writer.containers) and not self.writer.flat
            self.writer.left_out.add(BESIDE_CLASSES if is_beside else reason, beside.examples[reason], count)
        if len(self.writer.containers) == 0:
            left_out = self.writer.left_out
            cause = f"no images in this folder{skipped_text(left_out.counts, left_out.examples)}"
            raise LoaderError("E-NODATA", cause, path=root)

    def _list_root(self, images: ContainerTable) -> list[Subfolder]:
        """Add the images in the root to `images`; return its folders, sorted."""
        raise NotImplementedError

    def _add_classes(self, folders: list[Subfolder]) -> None:
        """Add each of the root's folders as a class, with its images."""
        raise NotImplementedError


class FolderScan(ClassFolders):
    """A single walk over the tree below a folder.

    Only regular files are images; a folder never is, even if it is named v1.png. A folder is walked once: by its own
    path, otherwise by the first link to it. Links to a folder above are not followed.

    `progress(num_images)` is called periodically and at the end. Raises LoaderError E-NODATA as ClassFolders;
    E-ACCESS, E-READ.
    """

    def __init__(
        self, root: bytes, *, follow_symlinks: bool = True, progress: Callable[[int], None] = lambda num_images: None
    ) -> None:
        self.follow_symlinks, self._progress = follow_symlinks, progress
        self._real_root = os.path.realpath(root)
        self._visited: set[tuple[int, int]] = set()
        self._num_images = 0
        super().__init__(root, self._real_root)
        progress(len(self.writer.containers))

    def _list_root(self, images: ContainerTable) -> list[Subfolder]:
        return self._walk_folder(b"", False, 0, images) or []

    def _add_classes(self, folders: list[Subfolder]) -> None:
        for name, is_link in folders:
            self._walk_class(name, is_link)

    def _walk_class(self, name: bytes, is_link: bool) -> None:
        label = len(self.writer.classes)
        images = ContainerTable()
        subfolders = self._walk_folder(name, is_link, label, images)
        if subfolders is None:
            return
        self.writer.classes.append(name)
        # Popped in bytewise order: the choice between two links to one folder must not depend on the listing.
        stack = [(name + b"/" + sub, link) for sub, link in reversed(subfolders)]
        while stack:
            folder, link = stack.pop()
            below = self._walk_folder(folder, link, label, images) or []
            stack += [(folder + b"/" + sub, link) for sub, link in reversed(below)]
        self.writer.add_files(images)

    def _walk_folder(self, folder: bytes, is_link: bool, label: int, images: ContainerTable) -> list[Subfolder] | None:
        """Add the images in `folder` to `images`; return its folders, None if it was walked before."""
        path = self.root + b"/" + folder if folder else self.root
        known = KNOWN_FOLDER if b"/" in folder else KNOWN_CLASS
        if is_link and self._leads_back(path):
            self.writer.left_out.add(known, folder)
            return None
        try:
            fd = with_retries(lambda: os.open(path, _FOLDER_FLAGS))
        except OSError as error:
            return self._skip_unopened(path, folder, label, error)
        try:
            # Read before the listing, so that a change during it shows as a later time.
            status = os.fstat(fd)
            if (identity := (status.st_dev, status.st_ino)) in self._visited:
                self.writer.left_out.add(known, folder)
                return None
            self._visited.add(identity)
            number = self.writer.add_folder(folder, label, stamps_of(status))
            subfolders, settled = self._list(fd, folder, number, images)
        except OSError as error:
            raise read_error(error, path) from error
        finally:
            os.close(fd)
        if not settled or status.st_mtime_ns > time.time_ns() - SETTLING_NS:
            self.writer.folder_mtimes[number] = UNSETTLED
        return sorted(subfolders, key=lambda subfolder: os.fsdecode(subfolder[0]))

    def _list(self, fd: int, folder: bytes, number: int, images: ContainerTable) -> tuple[list[Subfolder], bool]:
        """Return the folders in the open folder `fd`, and whether a later change of it would change its mtime."""
        prefix = folder + b"/" if folder else b""
        follow, left_out = self.follow_symlinks, self.writer.left_out
        subfolders: list[Subfolder] = []
        settled = True
        with os.scandir(fd) as entries:
            for entry in entries:
                name = entry.name
                path = prefix + os.fsencode(name)
                if not is_walked(name):
                    is_lost = folder and (follow or not entry.is_symlink()) and _has_images(self.root, prefix, entry)
                    left_out.add(HIDDEN_IMAGES if is_lost else HIDDEN, path)
                elif not follow and entry.is_symlink():
                    left_out.add(LINK, path)
                elif _is_folder(entry):
                    subfolders.append((os.fsencode(name), entry.is_symlink()))
                elif is_image_name(name):
                    try:
                        status = with_retries(entry.stat)
                    except OSError as error:
                        left_out.add(_explain_skip(entry, error), path)
                        settled = False
                        continue
                    if stat.S_ISREG(status.st_mode):
                        images.add(path, number, status.st_size, mtime_ns(status))
                        self._num_images += 1
                        if self._num_images % _PROGRESS_INTERVAL == 0:
                            self._progress(self._num_images)
                    else:
                        left_out.add(NOT_REGULAR, path)
                else:
                    left_out.add(_explain_other(entry), path)
                    settled = settled and not entry.is_symlink()  # a link may point to a folder later
        return subfolders, settled

    def _skip_unopened(self, path: bytes, folder: bytes, label: int, error: OSError) -> list[Subfolder]:
        """Raise if the root cannot be opened; count a folder below it, which is retried at the next scan."""
        if not folder:
            raise root_error(error, path) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            self.writer.left_out.add(UNREADABLE, folder)
        elif error.errno in (errno.ENOENT, errno.ENOTDIR):
            self.writer.left_out.add(VANISHED, folder)
        else:
            raise read_error(error, path) from error
        self.writer.add_folder(folder, label, (UNSETTLED, 0, 0))
        return []

    def _leads_back(self, link: bytes) -> bool:
        """Return whether a link points to a folder that is walked by its own path, or to a folder above the root."""
        target = os.path.realpath(link)
        above = self._real_root.rstrip(b"/") + b"/"
        if (target.rstrip(b"/") + b"/").startswith(above):
            inside = os.fsdecode(target[len(above) :])
            return all(is_walked(part) for part in inside.split("/") if part)
        return above.startswith(target.rstrip(b"/") + b"/")


def find_unnumbered_classes(root: bytes, classes: Collection[bytes], *, follow_symlinks: bool) -> list[str]:
    """Return the folders of `root` that are classes for torchvision.datasets.ImageFolder, but not in `classes`.

    Needed at every opening, because a saved index does not detect changes in them. Raises LoaderError as FolderScan.
    """
    try:
        with os.scandir(os.fsdecode(root)) as entries:
            others = [entry for entry in entries if os.fsencode(entry.name) not in classes]
    except OSError as error:
        raise root_error(error, root) from error
    followed = [entry for entry in others if follow_symlinks or not entry.is_symlink()]
    return sorted(entry.name for entry in followed if _is_folder(entry) and _has_images(root, b"", entry))


def root_error(error: OSError, root: bytes) -> LoaderError:
    """Return the LoaderError for a root that cannot be opened."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return LoaderError("E-NODATA", "no such folder", path=root)
    return read_error(error, root)


def skipped_text(skipped: Mapping[str, int], examples: Mapping[str, bytes] | None = None) -> str:
    """Return a text such as `, skipped: 3 hidden ('.a.jpg'), 1 not a regular file`, or ""."""
    reasons = ", ".join(
        f"{count:,} {reason}{f' ({printable(examples[reason])})' if examples else ''}"
        for reason, count in sorted(skipped.items())
        if count
    )
    return f", skipped: {reasons}" if reasons else ""


def is_walked(name: str) -> bool:
    """Return whether a folder or file with this name may be part of the data."""
    return not (name.startswith(".") or name in FOREIGN_FOLDERS)


def _has_images(root: bytes, prefix: bytes, entry: os.DirEntry[str]) -> bool:
    """Return whether torchvision.datasets.ImageFolder treats this file, or one below this folder, as an image."""
    path = os.path.join(os.fsdecode(root), os.fsdecode(prefix), entry.name)
    files = (name for _, _, names in os.walk(path) for name in names) if _is_folder(entry) else (entry.name,)
    return any(name.lower().endswith(IMAGE_FOLDER_SUFFIXES) for name in files)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a circular link, or a link into a folder that this user may not open


def _explain_other(entry: os.DirEntry[str]) -> str:
    """Return why a file without an image suffix, or a broken link, is skipped."""
    reason = explain_name(entry.name)
    if reason != SIDECAR and entry.is_symlink():
        try:
            entry.stat()
        except OSError as error:
            return _explain_skip(entry, error)
    return reason


def _explain_skip(entry: os.DirEntry[str], error: OSError) -> str:
    """Return why an unreadable entry is skipped. Raises `error` if the storage failed."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return UNREADABLE
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return BROKEN_LINK if entry.is_symlink() else VANISHED
    raise error


def refuse_strays(root: bytes, num_images: int, left_out: LeftOut) -> None:
    """Raise LoaderError E-NODATA if class folders contain images of unread formats, next to `num_images` read ones."""
    if unread := left_out.counts[UNREAD_FORMAT]:
        others = f"{num_images:,} image{'s' * (num_images != 1)} next to them would be all the data"
        example = printable(left_out.examples[UNREAD_FORMAT])
        cause = f"the class folders contain {unread:,} images of formats not read ({example}), and {others}"
        fix = "convert them to PNG or JPEG, or move away the images next to the class folders"
        raise LoaderError("E-NODATA", cause, fix=fix, path=root)


def refuse_empty_classes(samples: Samples, fix: str | None = None) -> None:
    """Raise LoaderError E-EMPTYCLASS if a class folder contains no image, E-ACCESS if it cannot be read."""
    empty = np.flatnonzero(samples.class_counts == 0)
    if samples.header.flat or not len(empty):
        return
    path = samples.prefix + samples.classes[empty[0]]
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
        raise LoaderError("E-ACCESS", "this class folder cannot be read", path=path)
    others = f", nor in {len(empty) - 1:,} others" if len(empty) > 1 else ""
    raise LoaderError("E-EMPTYCLASS", f"no image in this class folder{others}", fix=fix, path=path)
