"""Writes rows of image paths and labels as an index of image files."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from penstock.loaders.data.files.folder_index import as_prefix
from penstock.loaders.data.files.folder_index_builder import FileTable, FolderIndexBuilder
from penstock.loaders.data.files.left_out import NO_ROW_LABEL
from penstock.loaders.data.labels.stored_labels import digest_labels, split_classes
from penstock.loaders.data.remote.object_store import RemoteObject, is_url
from penstock.loaders.data.remote.path_or_url import HTTP
from penstock.loaders.data.samples.version import MISSING
from penstock.loaders.data.tables.file_stats import stat_files
from penstock.loaders.data.tables.row_packer import RowPacker
from penstock.loaders.system.column_file import DIGEST_BYTES
from penstock.pipelines.errors import LoaderError, printable

_ENTRY_BYTES = 36  # of an entry of the index's folder table, without its name


class ListIndexWriter:
    """Look up the files of packed rows, and write them as a FolderIndex in the order of the rows.

    An entry of its folder table is a folder with a label, so rows need no column of labels. If a folder would need so
    many entries that this takes more space than it saves, its rows carry the folder in their names.

    Args:
        packer: the rows.
        made_by: what else decides the content, compared before a saved index is used.
        show: called with the number of files looked up so far.
        listed: sizes and versions of URLs that are known already.

    Attributes:
        root: the deepest folder that contains all files; names are relative to it, so a copy has the same fingerprint.
        labels: those that are no class numbers, which the index does not hold.

    Raises LoaderError: E-NODATA without any row or file, E-FORMAT for labels that do not fit together.
    """

    def __init__(
        self,
        packer: RowPacker,
        made_by: str = "",
        show: Callable[[int], None] = lambda done: None,
        listed: Mapping[bytes, RemoteObject | None] = MappingProxyType({}),
    ) -> None:
        if not len(packer):
            raise LoaderError("E-NODATA", "no rows", fix="pass at least one image")
        self._packer, self._made_by = packer, made_by
        labels = packer.labels.finish()
        if labels and len(packer.labels) != len(packer):
            cause = f"{len(packer.labels):,} of {len(packer):,} rows have labels: some tables have no such column"
            raise LoaderError("E-FORMAT", cause, fix="name the column of labels with label=")
        left_out = packer.labels.left_out
        self._skipped = {NO_ROW_LABEL: int(left_out.sum())} if left_out.any() else {}
        if self._skipped:
            packer.leave_out(left_out)
        self._labels, self._classes, self.labels = split_classes(labels, len(packer))
        self._is_flat = not labels
        self.root = _find_root(min(packer.folders), max(packer.folders))
        prefix = as_prefix(self.root)
        self._has_keys = prefix.lower().startswith(HTTP)  # queries, which may change while the image does not
        self._folders = [folder[len(prefix) :] for folder in packer.folders]
        self._files = FileTable()
        self._arrange_entries()
        self._paths = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._files.sizes, self._files.mtimes = stat_files(prefix, self._name_files(), show, listed)
        if (np.frombuffer(self._files.mtimes, np.int64) == MISSING.number).all():
            folders, names = next(packer.chunks())
            raise _none_error(prefix + self._folders[folders[0]] + names[0], len(packer))

    def _arrange_entries(self) -> None:
        """Choose the entries of the folder table, and for each row its entry."""
        num_folders, num_classes = len(self._folders), len(self._classes)
        folder_of = np.frombuffer(self._packer.folder_of, np.uint32).astype(np.int64)
        lengths = np.array([len(folder) for folder in self._folders], np.int64)
        num_files = np.bincount(folder_of, minlength=num_folders)
        pairs = np.unique(folder_of * num_classes + self._labels)
        num_entries = np.bincount(pairs // num_classes, minlength=num_folders)
        # Files whose names carry their folder share an entry of the root for each label.
        self._carries = num_entries * (_ENTRY_BYTES + lengths) > num_files * lengths
        folder_of[self._carries[folder_of]] = num_folders
        entries, entry_of = np.unique(folder_of * num_classes + self._labels, return_inverse=True)
        self._files.folders.frombytes(entry_of.astype(np.uint32).tobytes())
        names = [*(folder[:-1] for folder in self._folders), b""]
        self._entry_names = [names[number] for number in (entries // num_classes).tolist()]
        self._entry_labels = (entries % num_classes).tolist()

    def _name_files(self) -> Iterator[list[bytes]]:
        """Yield the paths of the rows relative to the root, some at a time; digest them, and keep their names."""
        kept = [b"" if carries else folder for folder, carries in zip(self._folders, self._carries, strict=True)]
        table = self._files
        for folders, names in self._packer.chunks():
            paths = [self._folders[folder] + name for folder, name in zip(folders, names, strict=True)]
            named = [path.partition(b"?")[0] for path in paths] if self._has_keys else paths
            self._paths.update(b"\0".join(named) + b"\0")
            own = [path[len(kept[folder]) :] for folder, path in zip(folders, paths, strict=True)]
            table.offsets.extend(list(accumulate(map(len, own), initial=len(table.names)))[1:])
            table.names += b"".join(own)
            yield paths

    def write(self, file: BinaryIO) -> None:
        """Write the index. Raises OSError."""
        builder = FolderIndexBuilder(self._files, self._paths)
        builder.classes = list(self._classes)
        builder.class_counts = np.bincount(self._labels, minlength=len(self._classes)).tolist()
        # Times and inodes of folders show which files a scan would find: a list names its files.
        for name, label in zip(self._entry_names, self._entry_labels, strict=True):
            builder.add_folder(name, label, 0, 0)
        builder.write(
            file,
            root=self.root,
            flat=self._is_flat,
            skipped=self._skipped,
            rules=b"penstock image list 1",
            label_of=np.ascontiguousarray(self._labels),
            made_by=self._made_by,
            labels=digest_labels(self.labels) if self.labels else "",
        )


def _find_root(first: bytes, last: bytes) -> bytes:
    """Return the deepest folder that holds all of the folders of which these come first and last in order."""
    if not is_url(first):
        return os.path.commonpath([first, last])
    protocol = first[: first.index(b"://") + 3]
    return protocol + os.path.commonpath([folder[len(protocol) - 1 :] for folder in (first, last)])[1:]


def _none_error(first: bytes, count: int) -> LoaderError:
    """Return the error of rows none of whose files is there; `first` is the path of the first."""
    found = [] if is_url(first) else sorted(glob.glob(glob.escape(first) + b".*"))
    fix = "check the paths; root= names the folder to which relative paths belong"
    if found:
        fix = f"give all paths their suffix: {printable(os.path.basename(found[0]))} is there"
    cause = f"none of the {count:,} files is there, the first is {printable(first)}"
    return LoaderError("E-NODATA", cause, fix=fix)
