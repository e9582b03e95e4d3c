"""Serves a folder of image files as a source: class folders, or a flat folder as one class."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.loaders.sources.folder_index import FolderIndex
from penstock.loaders.sources.folder_scan import (
    LOST_TO_IMAGE_FOLDER,
    FolderScan,
    empty_classes_error,
    find_unnumbered_classes,
    root_error,
    skipped_text,
)
from penstock.loaders.sources.image_files import MAX_FILE_BYTES, ImageFiles
from penstock.loaders.sources.saved_index import is_still_valid, load_index, name_index
from penstock.loaders.system.progress_bar import ProgressBar
from penstock.loaders.system.saved_columns import save_index
from penstock.pipelines.checked import checked_bool, checked_int
from penstock.pipelines.errors import LoaderError, printable

SHOW_SCAN_AFTER_S = 1.0  # what takes less is not shown on the terminal
_SPLITS = frozenset({b"train", b"training", b"val", b"valid", b"validation", b"test", b"testing"})
_SHOWN = 5  # names in a warning


class ImageFolder(ImageFiles):
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

    one_class = "a flat folder counts as one class"

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
        super().__init__(path, _open_index(path, follow_symlinks, checked_bool("rescan", rescan), progress), options)
        self._warn_of_labels()
        if not allow_empty and not self._index.header.flat:
            self._refuse_empty_classes()

    def refreshed(self) -> ImageFolder:
        """Return this source if all its files and folders are unchanged since the scan, otherwise one of a new scan.

        Opening a folder compares only a sample of the files, because each is compared again when it is read. A cache is
        read instead of the files, so its check compares all.
        """
        if is_still_valid(self._index, self.root, every_file=True):
            return self
        return ImageFolder(self.root, rescan=True, **self._options)

    def _warn_of_labels(self) -> None:
        if not self._index.header.flat:
            for text in (self._describe_left_out_classes(), self._describe_left_out_images()):
                if text:
                    warnings.warn(f"{printable(self.root)}: {text}", stacklevel=3)
        if len(self.classes) > 1 and _SPLITS.issuperset(self.classes):
            names = " and ".join(map(printable, self.classes))
            fix = "pass the folder of one of them, if these are parts of the data"
            warnings.warn(f"{printable(self.root)}: its classes are {names}: {fix}", stacklevel=3)
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
        raise empty_classes_error(path, len(empty))


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
    return save_index(name, scan.write, FolderIndex)
