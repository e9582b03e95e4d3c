"""Serves a folder of image files as a source: class folders, or a flat folder as one class."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.folder_index import DamagedIndexError, FolderIndex
from penstock.loaders.sources.folder_scan import (
    LOST_TO_IMAGE_FOLDER,
    FolderScan,
    find_unnumbered_classes,
    root_error,
    skipped_text,
)
from penstock.loaders.sources.saved_index import drop_index, is_still_valid, load_index, name_index, save_index
from penstock.loaders.system.file_read import read_error, read_unchanged, with_retries
from penstock.loaders.system.progress_bar import ProgressBar
from penstock.pipelines.checked import checked_bool, checked_int
from penstock.pipelines.errors import LoaderError, printable, size_text
from penstock.pipelines.native.rows import FILE, Names, Rows

# An image of 100 megapixels, which is pipelines' limit, takes up to 400 MB uncompressed.
MAX_FILE_BYTES = 512 << 20
SHOW_SCAN_AFTER_S = 1.0  # what takes less is not shown on the terminal
_SHOWN = 5  # names in a warning


class ImageFolder:
    """Read the image files below a folder, one at a time; FolderScan defines which, in which order.

    The scan is saved as an index in the user's cache folder and reused while the tree is unchanged
    (`saved_index.is_still_valid`); `rescan=True` always scans. `progress(num_images)` replaces the terminal display
    during a scan. A file larger than `max_file_bytes` is refused before it is read. Pickles as the name and digest of
    its index, which each worker maps: a worker neither scans nor copies. A scan by another process does not affect this
    one and its workers.

    Warns (UserWarning) of trees that torchvision.datasets.ImageFolder would refuse or label differently, and of images
    that it would accept but that are left out here; of links only if `follow_symlinks`. GIF and .jpe are read silently.

    Raises LoaderError: E-NODATA for a folder that does not exist or holds no image, E-EMPTYCLASS for a class folder
    without images unless `allow_empty` (it then keeps its class number), E-ACCESS for a folder that cannot be read.
    """

    def __init__(
        self,
        root: str | bytes | os.PathLike[Any],
        *,
        allow_empty: bool = False,
        follow_symlinks: bool = True,
        rescan: bool = False,
        max_file_bytes: int = MAX_FILE_BYTES,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        path = os.path.abspath(os.fsencode(root))
        options = {
            "allow_empty": checked_bool("allow_empty", allow_empty),
            "follow_symlinks": checked_bool("follow_symlinks", follow_symlinks),
            "max_file_bytes": checked_int("max_file_bytes", max_file_bytes, 1),
        }
        self._set_up(path, _open_index(path, follow_symlinks, checked_bool("rescan", rescan), progress), options)
        self._warn_of_labels()
        if not allow_empty and not self._index.header.flat:
            self._refuse_empty_classes()

    def _set_up(self, root: bytes, index: FolderIndex, options: dict[str, Any]) -> None:
        self.root, self._index, self._options = root, index, options
        self._max_file_bytes: int = options["max_file_bytes"]
        self._prefix = root.rstrip(b"/") + b"/"
        self._num_files = index.num_files
        self.classes, self.fingerprint, self.skipped = index.classes, index.header.fingerprint, index.header.skipped
        self.content, self.num_bytes = index.header.content, index.header.num_bytes
        self.retries = 0

    def __len__(self) -> int:
        return self._num_files

    def read(self, index: int) -> bytes:
        """Read the bytes of image `index`; b"" for an empty file. Transient failures are retried, counted in `retries`.

        Raises LoaderError: E-MISSING, E-CHANGED (size or mtime differ from the scan), E-ACCESS, E-READ, E-BOMB for a
        file of more than max_file_bytes; IndexError.
        """
        path = self.path(index)
        size, mtime_ns = self._index.size(index), self._index.mtime_ns(index)
        if size > self._max_file_bytes:
            cause = f"the file has {size:,} bytes, more than max_file_bytes={self._max_file_bytes:,}"
            fix = f"open_source(folder, max_file_bytes={size}) if it is an image, or remove the file"
            raise LoaderError("E-BOMB", cause, fix=fix, sample=index, path=path)
        try:
            return with_retries(lambda: read_unchanged(path, size, mtime_ns), self._count_retry)
        except OSError as error:
            raise read_error(error, path).locate(sample=index) from error
        except LoaderError as error:
            drop_index(self._index)
            raise error.locate(sample=index) from None

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the files of images `indices`; a file larger than max_file_bytes stays ELSEWHERE."""
        names = self._index.locate(indices, rows)
        rows["kind"] = np.where(rows["size"] <= self._max_file_bytes, FILE, rows["kind"])
        return Names(self._prefix, *names)

    def refreshed(self) -> ImageFolder:
        """Return this source if all its files and folders are unchanged since the scan, otherwise one of a new scan.

        Opening a folder compares only a sample of the files, because each is compared again when it is read. A cache is
        read instead of the files, so its check compares all.
        """
        if is_still_valid(self._index, self.root, every_file=True):
            return self
        return ImageFolder(self.root, rescan=True, **self._options)

    def _count_retry(self) -> None:
        self.retries += 1

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images `indices` (int64)."""
        return self._index.labels(indices)

    def path(self, index: int) -> bytes:
        """Return the absolute path of image `index`. Raises IndexError."""
        if not 0 <= index < self._num_files:
            raise IndexError(f"image {index} of {self._num_files}")
        return self._prefix + self._index.relative_path(index)

    def describe(self) -> str:
        """Return one line: images, classes, bytes, what was skipped."""
        images = f"{len(self):,} image{'s' * (len(self) != 1)}"
        classes = f"{len(self.classes):,} class{'es' * (len(self.classes) != 1)}"
        if self._index.header.flat:
            classes += " (a flat folder counts as one class)"
        return f"{images}, {classes}, {size_text(self.num_bytes)}{skipped_text(self.skipped)}"

    def _warn_of_labels(self) -> None:
        if not self._index.header.flat:
            for text in (self._describe_left_out_classes(), self._describe_left_out_images()):
                if text:
                    warnings.warn(f"{printable(self.root)}: {text}", stacklevel=3)
        if self._index.header.flat and self._index.num_folders > 1:
            warnings.warn(
                f"{printable(self.root)}: its folders hold no image, so the images next to them are all of the data, "
                "as one class; torchvision.datasets.ImageFolder would refuse it",
                stacklevel=3,
            )

    def _describe_left_out_classes(self) -> str:
        """Describe the classes that only ImageFolder has, and how they change its class numbers."""
        follow = self._options["follow_symlinks"]
        names = find_unnumbered_classes(self.root, set(self.classes), follow_symlinks=follow)
        if not names:
            return ""
        later = [name for name in self.classes if os.fsdecode(name) > names[0]]
        shift = f"{len(later):,} of ours higher, from {printable(later[0])} on" if later else "ours alike"
        return (
            f"left out: {', '.join(map(printable, names[:_SHOWN]))}{', ...' * (len(names) > _SHOWN)}. "
            "torchvision.datasets.ImageFolder would make classes of such folders with images (hidden ones, those of a "
            f"system, and links to folders that are read already), and number {shift}"
        )

    def _describe_left_out_images(self) -> str:
        """Describe the files in our classes that only ImageFolder accepts."""
        lost = {reason: self.skipped[reason] for reason in LOST_TO_IMAGE_FOLDER if reason in self.skipped}
        if not lost:
            return ""
        return f"left out of its class folders{skipped_text(lost)}; torchvision.datasets.ImageFolder would accept them"

    def _refuse_empty_classes(self) -> None:
        empty = np.flatnonzero(self._index.class_counts == 0)
        if not len(empty):
            return
        path = self._prefix + self.classes[empty[0]]
        if not os.access(path, os.R_OK | os.X_OK):
            raise LoaderError("E-ACCESS", "this class folder cannot be read", path=path)
        others = f", nor in {len(empty) - 1:,} others" if len(empty) > 1 else ""
        raise LoaderError("E-EMPTYCLASS", f"no image in this class folder{others}", path=path)

    def __reduce__(self) -> tuple[Any, ...]:
        index = self._index
        return _reopen, (self.root, (index.path, index.descriptor_path), self.content, self._options)


def _open_index(
    root: bytes, follow_symlinks: bool, rescan: bool, progress: Callable[[int], None] | None
) -> FolderIndex:
    try:
        name = name_index(root, follow_symlinks=follow_symlinks)
    except OSError as error:
        raise root_error(error, root) from error
    saved = None if rescan else load_index(root, name)
    if saved is not None:
        return saved
    with ProgressBar("scanning", show_after_s=SHOW_SCAN_AFTER_S) as bar:

        def show(num_images: int) -> None:
            bar.show(num_images, what=f"scanning: {num_images:,} images in {printable(root)}")

        scan = FolderScan(root, follow_symlinks=follow_symlinks, progress=progress or show)
    return save_index(name, scan.write)


def _reopen(root: bytes, index_paths: tuple[bytes, ...], content: str, options: dict[str, Any]) -> ImageFolder:
    """Open the source in another process, by the index's name, or by the first process's descriptor if it was replaced.

    Raises LoaderError E-STALE if neither is the index of these files.
    """
    for path in index_paths:
        with contextlib.suppress(DamagedIndexError):
            index = FolderIndex(path, verify=False)
            if index.header.content == content:
                folder = ImageFolder.__new__(ImageFolder)
                folder._set_up(root, index, options)
                return folder
    cause = "the index of the folder is gone, or another process scanned the folder and found other files"
    raise LoaderError("E-STALE", cause, fix="create the loader again", path=root)
