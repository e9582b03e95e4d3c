"""Looks up the images of a folder in its saved index: numpy arrays in one file, mapped read-only by every process."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import weakref
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from penstock.loaders.system.file_read import open_regular
from penstock.loaders.system.json_file import decode_json

FORMAT = 3  # the version of the file, and of the rules by which a scan orders images and counts what it skips
DIGEST_BYTES = 32
ALIGNMENT = 64  # of the arrays in the file: numpy and memoryview refuse or slow down others
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
_CHUNK_BYTES = 1 << 20
_MAX_NAME_BYTES = 1 << 16  # no system opens a file whose name is longer


@dataclass(frozen=True, kw_only=True)
class IndexHeader:
    """Describe an index; stored in the file as JSON.

    Attributes:
        fingerprint: hex digest that identifies the images and labels.
        content: hex digest that also covers modification times.
        num_bytes: total size of all image files.
        flat: whether the images lie in the root itself, as one class.
        skipped: reason -> number of entries that were skipped.
        format: version of the file, FORMAT.
    """

    fingerprint: str
    content: str
    num_bytes: int
    flat: bool
    skipped: dict[str, int]
    format: int = FORMAT


class DamagedIndexError(ValueError):
    """Raised for a file that is not a complete index of this version: scan again."""


class FolderIndex:
    """Look up names, folders, labels, sizes and times of the images below one root; no Python object per image.

    The mapping is shared: all processes on a machine use the same pages. File names are relative to their folder,
    folder names to the root; both are bytes. Raises DamagedIndexError (also for a file that is not there).
    """

    def __init__(self, path: bytes, *, verify: bool = True) -> None:
        """Map the index at `path`; `verify` first reads it and compares its digest (40 ms per million files)."""
        self.path = path
        try:
            self.fd = open_regular(path)
            weakref.finalize(self, os.close, self.fd).atexit = False
            with open(self.fd, "rb", closefd=False) as file:
                if verify:
                    _verify(file)
                self.header, columns = _map_arrays(file)
        except OSError as error:
            raise DamagedIndexError(str(error)) from error
        self.root = columns["root"].tobytes()
        self.classes = _split_names(columns["class_names"], columns["class_offsets"])
        self.class_counts = columns["class_counts"]
        self.folder_labels, self.file_folders = columns["folder_labels"], columns["file_folders"]
        self.folder_mtimes, self.folder_ctimes = columns["folder_mtimes"], columns["folder_ctimes"]
        self.folder_inodes = columns["folder_inodes"]
        self.num_folders, self.num_files = len(self.folder_labels), len(self.file_folders)
        self._columns = columns
        # A memoryview gives Python integers in a third of the time that numpy takes for a scalar.
        self._folder_names, self._folder_offsets = columns["folder_names"].data, columns["folder_offsets"].data
        self._file_names, self._file_offsets = columns["file_names"].data, columns["file_offsets"].data
        self._file_folders, self._file_sizes = columns["file_folders"].data, columns["file_sizes"].data
        self._file_mtimes = columns["file_mtimes"].data

    @property
    def descriptor_path(self) -> bytes:
        """The path by which another process of this user opens this very file, even if it was replaced or removed."""
        return b"/proc/%d/fd/%d" % (os.getpid(), self.fd)

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
        self, indices: npt.NDArray[np.int64], rows: npt.NDArray[np.void]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Fill `rows` with names, sizes and times of images `indices`; return the names of all folders and files."""
        columns = self._columns
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
        return columns["folder_names"], columns["file_names"]

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images."""
        labels: npt.NDArray[np.int64] = self.folder_labels[self.file_folders[indices]].astype(np.int64)
        return labels


class _Digesting:
    """Write to a file, and digest what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.blake2b(digest_size=DIGEST_BYTES)

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def finish(self) -> None:
        self._file.write(self._digest.digest())
        self._file.flush()


def write_index(file: BinaryIO, header: IndexHeader, columns: dict[str, npt.NDArray[Any]]) -> None:
    """Write an index: its header, the arrays for COLUMNS, and a digest of all that. Raises OSError."""
    digesting = _Digesting(file)
    text = np.frombuffer(json.dumps(asdict(header)).encode("ascii"), np.uint8)
    for array in (text, *(columns[name] for name in COLUMNS)):
        np.save(digesting, array, allow_pickle=False)
        digesting.write(bytes(-file.tell() % ALIGNMENT))
    digesting.finish()


def _map_arrays(file: BinaryIO) -> tuple[IndexHeader, dict[str, npt.NDArray[Any]]]:
    """Map the file; return its header, and its columns by name. Raises DamagedIndexError, OSError."""
    file.seek(0)
    try:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        header = decode_json(_next_array(file, mapping, ("|u1",)).tobytes(), IndexHeader)
        columns = {name: _next_array(file, mapping, kinds) for name, kinds in COLUMNS.items()}
    except ValueError as error:
        raise DamagedIndexError(f"not an index of this version: {error}") from error
    if header.format != FORMAT or file.tell() + DIGEST_BYTES != len(mapping):
        raise DamagedIndexError("not an index of this version")
    for name, column in columns.items():
        table = name.partition("_")[0]
        if not name.endswith(("_names", "_offsets", "root")) and len(column) != len(columns[f"{table}_offsets"]) - 1:
            raise DamagedIndexError("columns of one table differ in length")
    return header, columns


def _next_array(file: BinaryIO, mapping: mmap.mmap, kinds: tuple[str, ...]) -> npt.NDArray[Any]:
    """Map the array at the position of `file`, and move behind it. Raises ValueError for types other than `kinds`."""
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    if dtype.str not in kinds or len(shape) != 1:
        raise ValueError(f"unexpected array of {dtype.str} {shape}")
    array = np.frombuffer(mapping, dtype, shape[0], file.tell()) if shape[0] else np.empty(0, dtype)
    end = file.tell() + array.nbytes
    file.seek(end + -end % ALIGNMENT)
    return array


def _verify(file: BinaryIO) -> None:
    """Compare the digest, by reads: pages looked at through the mapping would count as this process's memory."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    left = os.fstat(file.fileno()).st_size - DIGEST_BYTES
    while left > 0:
        chunk = file.read(min(left, _CHUNK_BYTES))
        digest.update(chunk)
        left -= len(chunk) or left  # a file that is being cut off
    if file.read() != digest.digest():
        raise DamagedIndexError("the digest differs")


def _split_names(blob: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> tuple[bytes, ...]:
    text, ends = blob.tobytes(), offsets.tolist()
    return tuple(text[a:b] for a, b in pairwise(ends))
