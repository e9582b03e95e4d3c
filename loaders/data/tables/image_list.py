"""Serves the image files of a list or table as a source, in the order of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.folder_index import FolderIndex, as_prefix
from penstock.loaders.data.files.image_files import ImageFiles
from penstock.loaders.data.files.range_index import FileRanges
from penstock.loaders.data.files.reopen_source import Reopening
from penstock.loaders.data.remote.path_or_url import without_key
from penstock.loaders.data.remote.remote_source import FetchedRanges, RemoteOptions
from penstock.loaders.data.samples.version import MISSING
from penstock.loaders.data.tables.file_stats import stat_files
from penstock.loaders.data.tables.list_index import ListIndexWriter
from penstock.loaders.data.tables.row_packer import NO_LABEL, RowPacker
from penstock.loaders.system.saved_columns import save_in_memory
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.user_warnings import warn_user

NUM_SAMPLED_FILES = 256
_CHUNK = 1024  # files that are looked up at once


class ImageList(ImageFiles):
    """Read the image files of rows (path, label), one at a time: image i is that of row i.

    A file may be in several rows. A missing file stays in the list, and reading it raises E-MISSING. The fingerprint
    covers paths relative to the deepest folder that contains all files, sizes, labels and class names.

    Warns (UserWarning) of missing files.

    Args:
        index: the rows, as ListIndexWriter wrote them.
        max_file_bytes: a larger file is refused before it is read.
        reopen: makes this source again from its table, from the files too if `rescan`; None for a list in memory.
        base: folder to which the names of images are relative; None for names that are whole paths.
    """

    one_class = "rows without labels count as one class"

    def __init__(
        self,
        index: FolderIndex,
        max_file_bytes: int,
        reopen: Callable[..., ImageList] | None = None,
        base: bytes | None = None,
        **options: Any,
    ) -> None:
        known = {"max_file_bytes": max_file_bytes, "reopen": reopen, "base": base and without_key(base)}
        super().__init__(index.root, index, {**known, **options})
        self._warn_of_missing()

    def refreshed(self) -> ImageList:
        """Return this source if all its files are unchanged, otherwise one of the files as they are now.

        A table is read again if it has changed.
        """
        reopen: Callable[..., ImageList] | None = self._options["reopen"]
        same_files = are_unchanged(self._index)
        if reopen is not None:
            again = reopen(rescan=not same_files)
            return self if again.content == self.content else again
        if same_files:
            return self
        is_flat = self._index.header.flat
        packer = RowPacker(None if is_flat else self.classes)
        if not is_flat:
            packer.labels.column().keeps_numbers = True
        for number, label in enumerate(self.labels(np.arange(len(self))).tolist()):
            packer.add(self.path(number), NO_LABEL if is_flat else label, number + 1)
        index = save_in_memory(ListIndexWriter(packer).write, FolderIndex)
        return type(self)(index, **self._options)

    def name(self, index: int) -> bytes:
        """Return the path of image `index` relative to the folder of its table, whatever else the table lists."""
        base: bytes | None = self._options["base"]
        path = without_key(self.path(index))
        return path if base is None else path.removeprefix(as_prefix(base))

    def count_missing(self, indices: npt.NDArray[np.int64]) -> int:
        """Count the files of images `indices` (int64 [n]) that were not there when they were listed."""
        return int(np.count_nonzero(self._index.file.columns["file_mtimes"][indices] == MISSING.number))

    def _warn_of_missing(self) -> None:
        missing = np.flatnonzero(self._index.file.columns["file_mtimes"] == MISSING.number)
        if len(missing):
            first = printable(self.path(int(missing[0])))
            text = f"{len(missing):,} of {len(self):,} files are not there, the first is {first}"
            warn_user(f"{text}; reading them raises E-MISSING, or as on_bad_sample says")


class RemoteImageList(FetchedRanges, ImageList):
    """Read images by URL, each an object of its own, as ImageList reads files. `remote`, an option: RemoteOptions."""

    def _take(self, root: bytes, index: FolderIndex, options: dict[str, Any]) -> None:
        super()._take(root, index, options)
        self.root = without_key(root)
        self._begin_fetching(FileRanges(index), options["remote"])

    def with_options(self, **changes: Any) -> RemoteImageList:
        """Return a source of the same data that shares nothing with this one; `changes` are fields of RemoteOptions."""
        return type(self)(self._index, **{**self._options, "remote": replace(self.options, **changes)})


def open_index(
    index: FolderIndex,
    remote: RemoteOptions | None,
    limit: int,
    reopen: Callable[..., ImageList] | None,
    **options: Any,
) -> ImageList:
    """Serve the images of an index, files or URLs; `options` of ImageList."""
    if remote is None:
        return ImageList(index, limit, reopen, **options)
    return RemoteImageList(index, limit, None if reopen is None else Reopening(reopen), remote=remote, **options)


def are_unchanged(index: FolderIndex, *, every_file: bool = True) -> bool:
    """Return whether files of an index have the same size and time as then: all, or some and those that were missing.

    Of either kind NUM_SAMPLED_FILES are looked at.
    """
    some = np.arange(index.num_files)
    if not every_file:
        sampled = np.linspace(0, index.num_files - 1, NUM_SAMPLED_FILES).astype(int)
        missing = np.flatnonzero(index.file.columns["file_mtimes"] == MISSING.number)[:NUM_SAMPLED_FILES]
        some = np.union1d(sampled, missing)
    parts = (some[first : first + _CHUNK].tolist() for first in range(0, len(some), _CHUNK))
    chunks = ([index.relative_path(number) for number in numbers] for numbers in parts)
    stats = stat_files(as_prefix(index.root), chunks)
    known = (index.file.columns[name][some] for name in ("file_sizes", "file_mtimes"))
    return all(np.array_equal(now, then) for now, then in zip(stats, known, strict=True))
