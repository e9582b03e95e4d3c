"""Looks up the images of a folder in its saved index: numpy arrays in one file, mapped read-only by every process."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.loaders.system.column_file import split_names
from penstock.loaders.system.json_file import ByteText
from penstock.loaders.system.saved_columns import SavedIndex
from penstock.pipelines.native.locate import FileTables
from penstock.pipelines.native.rows import FILE

FORMAT = 4  # the version of the file, and of the rules by which a scan orders images and counts what it skips
# Name -> types it may have; the file holds the header and these, in this order, as numpy.save writes them.
COLUMNS: dict[str, tuple[str, ...]] = {
    "root": ("|u1",),
    "class_names": ("|u1",),
    "class_offsets": ("<u8",),
    "class_counts": ("<i8",),
    "folder_names": ("|u1",),
    "folder_offsets": ("<u8",),
    "folder_labels": ("<i4",),
    "folder_mtimes": ("<i8",),
    "folder_ctimes": ("<i8",),
    "folder_inodes": ("<u8",),
    "file_names": ("|u1",),
    "file_offsets": ("<u4", "<u8"),
    "file_folders": ("<u2", "<u4"),
    "file_sizes": ("<u4", "<u8"),
    "file_mtimes": ("<i8",),
}
_MAX_NAME_BYTES = 1 << 16  # no system opens a file whose name is longer


@dataclass(frozen=True, kw_only=True)
class ImagesHeader:
    """Describe an index of images; stored in the file as JSON.

    Attributes:
        fingerprint: hex digest that identifies names, sizes and labels of the images.
        content: hex digest that also covers sizes and modification times of the files.
        num_bytes: total size of all images.
        skipped: reason -> number of entries that were skipped.
        examples: reason -> name of one of them.
        made_by: what else decides the content, such as a table or options; compared before a saved index is used.
        labels: hex digest of the labels next to this index, if they are no class numbers.
    """

    fingerprint: str
    content: str
    num_bytes: int
    skipped: dict[str, int]
    examples: dict[str, ByteText] = field(default_factory=dict)
    made_by: str = ""
    labels: str = ""


@dataclass(frozen=True, kw_only=True)
class IndexHeader(ImagesHeader):
    """Describe the index of a folder or list; `flat` says whether the images lie in the root itself, as one class."""

    flat: bool
    format: int = FORMAT


class FolderIndex(SavedIndex):
    """Look up names, folders, labels, sizes and times of the images below one root; no Python object per image.

    File names are relative to their folder, folder names to the root; both are bytes.
    """

    kinds, header_class = COLUMNS, IndexHeader
    header: IndexHeader

    def __init__(self, path: bytes, verify: bool = True) -> None:
        super().__init__(path, verify)
        columns = self.file.columns
        self.root = columns["root"].tobytes()
        self.classes = split_names(columns["class_names"], columns["class_offsets"])
        self.class_counts = columns["class_counts"]
        self.folder_labels, self.file_folders = columns["folder_labels"], columns["file_folders"]
        self.folder_mtimes, self.folder_ctimes = columns["folder_mtimes"], columns["folder_ctimes"]
        self.folder_inodes = columns["folder_inodes"]
        self.num_folders, self.num_files = len(self.folder_labels), len(self.file_folders)
        self._columns, self._tables = columns, FileTables(columns)
        # A memoryview gives Python integers in a third of the time that numpy takes for a scalar.
        self._folder_names, self._folder_offsets = columns["folder_names"].data, columns["folder_offsets"].data
        self._file_names, self._file_offsets = columns["file_names"].data, columns["file_offsets"].data
        self._file_folders, self._file_sizes = columns["file_folders"].data, columns["file_sizes"].data
        self._file_mtimes = columns["file_mtimes"].data

    def folder(self, folder: int) -> bytes:
        """Return the path of a folder relative to the root; b"" is the root."""
        return bytes(self._folder_names[self._folder_offsets[folder] : self._folder_offsets[folder + 1]])

    def relative_path(self, index: int) -> bytes:
        """Return the path of an image relative to the root."""
        name = bytes(self._file_names[self._file_offsets[index] : self._file_offsets[index + 1]])
        folder = self.folder(self._file_folders[index])
        return folder + b"/" + name if folder else name

    def size(self, index: int) -> int:
        """Return the bytes of an image file when it was scanned."""
        return self._file_sizes[index]

    def mtime_ns(self, index: int) -> int:
        """Return the modification time (ns) of an image file when it was scanned."""
        return self._file_mtimes[index]

    def locate(
        self, indices: npt.NDArray[np.int64], rows: npt.NDArray[np.void], max_file_bytes: int = 1 << 62
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Fill `rows` with names, sizes and times of images `indices`; return the names of all folders and files.

        A file larger than `max_file_bytes` stays ELSEWHERE.
        """
        columns = self._columns
        if self._tables.locate(indices, rows, max_file_bytes):
            return columns["folder_names"], columns["file_names"]
        folders = columns["file_folders"][indices]
        sound = np.ones(len(indices), bool)  # the digest does not prove that the index was made with good intent
        for field_name, table, which in (("folder", "folder", folders), ("name", "file", indices)):
            offsets = columns[f"{table}_offsets"]
            begin, end = offsets[which].astype(np.int64), offsets[which.astype(np.int64) + 1].astype(np.int64)
            rows[field_name], rows[f"{field_name}_bytes"] = begin, end - begin
            sound &= (begin >= 0) & (begin <= end) & (end <= len(columns[f"{table}_names"]))
            sound &= end - begin < _MAX_NAME_BYTES
        rows["name_bytes"] = np.where(sound, rows["name_bytes"], 0)  # for Python to read
        rows["size"], rows["mtime_ns"] = columns["file_sizes"][indices], columns["file_mtimes"][indices]
        rows["file_size"], rows["kind"] = rows["size"], np.where(rows["size"] <= max_file_bytes, FILE, rows["kind"])
        return columns["folder_names"], columns["file_names"]

    def __len__(self) -> int:
        return self.num_files

    def labels_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images."""
        labels: npt.NDArray[np.int64] = self.folder_labels[self.file_folders[indices]].astype(np.int64)
        return labels


def as_prefix(root: bytes) -> bytes:
    """Return what the names of an index are appended to: the root and a slash, if it does not end with one."""
    return root if root.endswith(b"/") else root + b"/"
