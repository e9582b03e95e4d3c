"""Keeps the packed index of an image folder: columns in one file, mapped read-only by every process."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock.loaders.system.file_read import open_regular
from penstock.loaders.system.json_file import Count, decode_json

MAGIC = b"penstock index 2"  # the last character is the version of the format, and of the rules of a scan
SKIP_RULES = 1  # the version of the rules by which a scan says why it skips an entry
DIGEST_BYTES = 32
# Name -> types it may have; the columns lie in the file in this order, each at a multiple of ALIGNMENT.
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
ALIGNMENT = 64
_PREFIX = struct.Struct("<16sQ")  # MAGIC, bytes of the JSON that follows
_CHUNK_BYTES = 1 << 20
_MAX_NAME_BYTES = 1 << 16  # no system opens a file whose name is longer


@dataclass(frozen=True, kw_only=True)
class IndexHeader:
    """Hold what an index says of itself beside its columns; it is JSON in the file.

    Attributes:
        fingerprint: hex digest of which images and labels these are.
        content: hex digest that also covers modification times.
        num_bytes: size of all image files together.
        flat: whether the images lie in the root itself, as one class.
        skipped: reason -> number of entries that were not taken.
        rules: version of the rules by which these were counted.
        columns: (name, numpy type, length) of each of COLUMNS.
    """

    fingerprint: str
    content: str
    num_bytes: int
    flat: bool
    skipped: dict[str, int]
    rules: int = 0
    columns: list[tuple[str, str, Count]] = field(default_factory=list)


class DamagedIndexError(ValueError):
    """Says that a file is not a whole index of this version: scan again."""


class FolderIndex:
    """Look up names, folders, labels, sizes and times of the images below one root; no Python object per image.

    The mapping is shared: all processes on a machine use the same pages. File names are relative to their folder,
    folder names to the root; both are bytes. Raises DamagedIndexError (also for a file that is not there).
    """

    def __init__(self, path: bytes, *, verify: bool = True) -> None:
        """Map the index at `path`; `verify` reads all of it and compares its digest first (40 ms a million files)."""
        self.path = path
        try:
            self.fd = open_regular(path)
            weakref.finalize(self, os.close, self.fd).atexit = False
            with open(self.fd, "rb", closefd=False) as file:
                header, start = _read_header(file)
                end = _end_of_columns(header, start)
                if os.fstat(file.fileno()).st_size != end + DIGEST_BYTES:
                    raise DamagedIndexError("the length is wrong")
                if verify:
                    _verify(file, end)
                self._mapping = mmap.mmap(file.fileno(), end, prot=mmap.PROT_READ)
        except OSError as error:
            raise DamagedIndexError(str(error)) from error
        self.header = header
        columns = {n: np.frombuffer(self._mapping, t, c, at) for n, t, c, at in _places(header.columns, start)}
        self.root = columns["root"].tobytes()
        self.classes = _names(columns["class_names"], columns["class_offsets"])
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
        """The path by which another process of this user opens this very file, be it replaced or removed since."""
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
        """Fill in names, sizes and times of images `indices`; returns the names of all folders and all files."""
        columns = self._columns
        folders = columns["file_folders"][indices]
        sound = np.ones(len(indices), bool)  # the digest does not say that the index's maker meant well
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


def write_index(file: BinaryIO, header: IndexHeader, columns: dict[str, npt.NDArray[Any]]) -> None:
    """Write an index from its header (the columns' table is made here) and arrays for COLUMNS. Raises OSError."""
    table = [(name, columns[name].dtype.str, len(columns[name])) for name in COLUMNS]
    text = json.dumps({**asdict(header), "columns": table}).encode("ascii")
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    position = 0

    def put(data: bytes | memoryview) -> None:
        nonlocal position
        digest.update(data)
        file.write(data)
        position += len(data)

    put(_PREFIX.pack(MAGIC, len(text)) + text)
    for name in COLUMNS:
        put(bytes(-position % ALIGNMENT))
        put(np.ascontiguousarray(columns[name]).data.cast("B") if len(columns[name]) else b"")
    file.write(digest.digest())
    file.flush()


def _read_header(file: BinaryIO) -> tuple[IndexHeader, int]:
    """Read and check the header; the second value is where it ends."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) != _PREFIX.size or prefix[: len(MAGIC)] != MAGIC:
        raise DamagedIndexError("not an index of this version")
    num_bytes = _PREFIX.unpack(prefix)[1]
    if num_bytes > os.fstat(file.fileno()).st_size:
        raise DamagedIndexError("the header is cut off")
    try:
        header = decode_json(file.read(num_bytes), IndexHeader)
    except ValueError as error:
        raise DamagedIndexError(f"the header: {error}") from error
    _check_columns(header.columns)
    return header, _PREFIX.size + num_bytes


def _check_columns(table: list[tuple[str, str, int]]) -> None:
    if [name for name, _, _ in table] != list(COLUMNS) or any(kind not in COLUMNS[name] for name, kind, _ in table):
        raise DamagedIndexError("the columns are not those of this version")
    counts = {name: count for name, _, count in table}
    for name, count in counts.items():
        table_of = name.partition("_")[0]
        if not name.endswith(("_names", "_offsets", "root")) and count != counts[f"{table_of}_offsets"] - 1:
            raise DamagedIndexError("columns of one table differ in length")


def _places(table: list[tuple[str, str, int]], start: int) -> Iterator[tuple[str, str, int, int]]:
    """Yield (name, type, count, byte offset) of each column."""
    for name, kind, count in table:
        start += -start % ALIGNMENT
        yield name, kind, count, start
        start += count * np.dtype(kind).itemsize


def _end_of_columns(header: IndexHeader, start: int) -> int:
    *_, (_, kind, count, at) = _places(header.columns, start)
    return at + count * np.dtype(kind).itemsize


def _verify(file: BinaryIO, end: int) -> None:
    """Compare the digest, by reads: pages looked at through the mapping would count as this process's memory."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    file.seek(0)
    left = end
    while left:
        chunk = file.read(min(left, _CHUNK_BYTES))
        if not chunk:
            raise DamagedIndexError("the file is cut off")
        digest.update(chunk)
        left -= len(chunk)
    if file.read(DIGEST_BYTES) != digest.digest():
        raise DamagedIndexError("the digest differs")


def _names(blob: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> tuple[bytes, ...]:
    text, ends = blob.tobytes(), offsets.tolist()
    return tuple(text[a:b] for a, b in pairwise(ends))
