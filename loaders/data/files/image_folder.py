"""A source of the image files in a folder: class folders, or a flat folder as one class."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from typing import Any

from penstock.loaders.data.files.folder_scan import (
    KNOWN_FOLDER,
    FolderScan,
    find_unnumbered_classes,
    refuse_empty_classes,
    root_error,
    skipped_text,
)
from penstock.loaders.data.files.indexed_source import MAX_FILE_BYTES, IndexedSource
from penstock.loaders.data.files.left_out import HIDDEN_IMAGES, LINK, warn_of_left_out, warn_of_parts
from penstock.loaders.data.files.path_patterns import AnyPath
from penstock.loaders.data.samples.file_stats import is_unchanged
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.loaders.system.saved_columns import load_saved
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import checked_bool, checked_int
from penstock.pipelines.messages.user_warnings import warn_user

_SHOWN = 5  # names in a warning


class ImageFolder(IndexedSource):
    """A source of the image files below a folder; FolderScan defines which, and their order.

    The scan is saved as an index in the user's cache folder and reused while the tree is unchanged
    (`is_unchanged`); `rescan=True` always scans. A file larger than `max_file_bytes` is refused before it is read.
    Pickles as the name and digest of its index, which each worker maps: a worker neither scans nor copies. A scan by
    another process does not affect this one and its workers.

    Warns (UserWarning) of trees that torchvision.datasets.ImageFolder would refuse or label differently, and of images
    that it would accept but that are left out here; of links only if `follow_symlinks`. GIF and .jpe are read without a
    warning.

    Raises LoaderError: E-NODATA for a missing folder or one without images, E-EMPTYCLASS for a class folder without
    images unless `allow_empty` (it then keeps its class number), E-ACCESS for a folder that cannot be read.
    """

    def __init__(
        self,
        root: AnyPath,
        *,
        allow_empty: bool = False,
        follow_symlinks: bool = True,
        rescan: bool = False,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        path = os.path.abspath(os.fsencode(root))
        options: dict[str, Any] = {
            "allow_empty": checked_bool("allow_empty", allow_empty),
            "follow_symlinks": checked_bool("follow_symlinks", follow_symlinks),
            "max_file_bytes": checked_int("max_file_bytes", max_file_bytes, 1),
        }
        super().__init__(
            _open_index(path, follow_symlinks, checked_bool("rescan", rescan)),
            options["max_file_bytes"],
            partial(ImageFolder, path, **options),
            root=path,
            base=path,
            one_class="a flat folder counts as one class",
        )
        self._warn_of_labels(follow_symlinks)
        if not allow_empty:
            refuse_empty_classes(self.samples)

    def _warn_of_labels(self, follow: bool) -> None:
        if not self.samples.header.flat:
            for text in (self._describe_left_out_classes(follow), self._describe_left_out_images()):
                if text:
                    warn_user(f"{printable(self.root)}: {text}")
        warn_of_left_out(self.skipped, self.samples.header.examples, printable(self.root), unsaid=(LINK,))
        warn_of_parts(self.classes, printable(self.root))
        if self.samples.header.flat and self.samples.num_folders > 1:
            warn_user(
                f"{printable(self.root)}: its folders contain no images, so the images next to them are all the data, "
                "as one class; torchvision.datasets.ImageFolder would refuse it",
            )

    def _describe_left_out_classes(self, follow: bool) -> str:
        """Describe the classes that only ImageFolder has, and how they change its class numbers."""
        names = find_unnumbered_classes(self.root, set(self.classes), follow_symlinks=follow)
        if not names:
            return ""
        later = [name for name in self.classes if os.fsdecode(name) > names[0]]
        shift = f"{len(later):,} of the others higher, from {printable(later[0])} on" if later else "the others alike"
        return (
            f"left out: {', '.join(map(printable, names[:_SHOWN]))}{', ...' * (len(names) > _SHOWN)}. "
            "torchvision.datasets.ImageFolder would treat such folders with images as classes (hidden folders, system "
            f"folders, and links to folders that are already read), and number {shift}"
        )

    def _describe_left_out_images(self) -> str:
        """Describe the files in class folders that only ImageFolder accepts."""
        lost = {reason: self.skipped[reason] for reason in (HIDDEN_IMAGES, KNOWN_FOLDER) if reason in self.skipped}
        if not lost:
            return ""
        return f"left out of its class folders{skipped_text(lost)}; torchvision.datasets.ImageFolder would accept them"


def _open_index(root: bytes, follow_symlinks: bool, rescan: bool) -> Samples:
    try:
        name = name_index(root, follow_symlinks=follow_symlinks)
    except OSError as error:
        raise root_error(error, root) from error
    saved = None if rescan else load_saved(name, Samples)
    if saved is not None and saved.root == os.path.realpath(root) and is_unchanged(saved, every=False):
        return saved
    with ProgressBar("scanning", show_after_s=SHOW_AFTER_S) as bar:

        def show(num_images: int) -> None:
            bar.show(num_images, what=f"scanning: {num_images:,} images in {printable(root)}")

        scan = FolderScan(root, follow_symlinks=follow_symlinks, progress=show)
    return scan.writer.save(name)


def name_index(root: bytes, *, follow_symlinks: bool) -> bytes:
    """Return the file name of the index of `root`: a digest of its real path, its inode and the scan's option.

    The inode distinguishes copies at the same path on the machines of a cluster with a shared home.
    """
    digest = hashlib.blake2b(os.path.realpath(root), digest_size=16)
    digest.update(b"\0%d %d" % (os.stat(root).st_ino, follow_symlinks))
    return digest.hexdigest().encode() + b".index"
