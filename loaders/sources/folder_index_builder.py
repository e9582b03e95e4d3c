"""Builds the packed index of an image folder in a few bytes per image."""

from __future__ import annotations

import hashlib
import heapq
import mmap
import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.folder_index import DIGEST_BYTES, SKIP_RULES, IndexHeader, write_index

# (path relative to the root, number of its folder, size in bytes, mtime in ns)
FileEntry = tuple[bytes, int, int, int]
# Python objects of this many images are alive at once: about 4 MB.
RUN_LENGTH = 1 << 14
# A folder whose listing may change without its mtime changing: never equal to a real time.
UNSETTLED = -(1 << 63)
_RECORD = struct.Struct("<IIQq")  # bytes of the path that follows, folder, size, mtime in ns


class FileTable:
    """Collect image files in packed columns, in the order they were added; about 48 bytes each."""

    def __init__(self) -> None:
        self.names = bytearray()
        self.offsets, self.folders = array("Q", [0]), array("I")
        self.sizes, self.mtimes = array("Q"), array("q")

    def extend(self, names: list[bytes], files: list[FileEntry]) -> None:
        """Add files under `names`, which may be shorter than their paths."""
        start = len(self.names)
        self.names += b"".join(names)
        self.offsets.extend(islice(accumulate(map(len, names), initial=start), 1, None))
        self.folders.extend([file[1] for file in files])
        self.sizes.extend([file[2] for file in files])
        self.mtimes.extend([file[3] for file in files])

    def __len__(self) -> int:
        return len(self.folders)


class FileSorter:
    """Sort files by path (bytewise), holding no more than RUN_LENGTH of them as Python objects.

    A heap that once held a million of them does not give all of it back.
    """

    def __init__(self) -> None:
        self._loose: list[FileEntry] = []
        self._runs: list[mmap.mmap] = []
        self._num_spilled = 0

    def add(self, file: FileEntry) -> None:
        """Take a file."""
        self._loose.append(file)
        if len(self._loose) == RUN_LENGTH:
            self._loose.sort()
            self._runs.append(_pack(self._loose))
            self._num_spilled += RUN_LENGTH
            self._loose = []

    def __len__(self) -> int:
        return self._num_spilled + len(self._loose)

    def __iter__(self) -> Iterator[FileEntry]:
        self._loose.sort()
        return heapq.merge(*map(_unpack, self._runs), self._loose) if self._runs else iter(self._loose)


def _pack(files: list[FileEntry]) -> mmap.mmap:
    """Pack files into a mapping of their own: unlike the heap's, its memory goes back when it is dropped."""
    records = b"".join([_RECORD.pack(len(path), folder, size, time) + path for path, folder, size, time in files])
    run = mmap.mmap(-1, len(records))
    run.write(records)
    return run


def _unpack(run: mmap.mmap) -> Iterator[FileEntry]:
    position = 0
    while position < len(run):
        length, folder, size, mtime_ns = _RECORD.unpack_from(run, position)
        position += _RECORD.size + length
        yield run[position - length : position], folder, size, mtime_ns


class FolderIndexBuilder:
    """Collect classes, folders and files one after another, then write them as one FolderIndex file."""

    def __init__(self) -> None:
        self.classes: list[bytes] = []
        self.class_counts: list[int] = []
        self._folder_names, self._folder_offsets = bytearray(), array("Q", [0])
        self.folder_labels, self.folder_mtimes = array("i"), array("q")
        self._folder_ctimes, self._folder_inodes = array("q"), array("Q")
        self._files = FileTable()
        self._paths = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def __len__(self) -> int:
        return len(self._files)

    def add_class(self, name: bytes) -> int:
        """Add a class and return its number."""
        self.classes.append(name)
        self.class_counts.append(0)
        return len(self.classes) - 1

    def add_folder(self, path: bytes, label: int, mtime_ns: int, inode: int, ctime_ns: int = 0) -> int:
        """Add a folder, `path` relative to the root, whose images are of class `label`; return its number."""
        self._folder_names += path
        self._folder_offsets.append(len(self._folder_names))
        self.folder_labels.append(label)
        self.folder_mtimes.append(mtime_ns)
        self._folder_ctimes.append(ctime_ns)
        self._folder_inodes.append(inode)
        return len(self.folder_labels) - 1

    def add_files(self, label: int, files: Iterable[FileEntry]) -> None:
        """Append the images of class `label`, in the order in which they shall be numbered."""
        stream = iter(files)
        while chunk := list(islice(stream, 4096)):
            paths = [file[0] for file in chunk]
            self._paths.update(b"\0".join(paths) + b"\0")
            self._files.extend([path[path.rfind(b"/") + 1 :] for path in paths], chunk)
            self.class_counts[label] += len(chunk)

    def write(self, file: BinaryIO, *, root: bytes, flat: bool, skipped: dict[str, int]) -> None:
        """Write the index of the tree at `root`; `skipped` counts what was not taken. Raises OSError."""
        fingerprint = self._fingerprint()
        content = hashlib.blake2b(fingerprint.encode(), digest_size=DIGEST_BYTES)
        content.update(self._files.mtimes)
        sizes = np.frombuffer(self._files.sizes, np.uint64)
        header = IndexHeader(
            fingerprint=fingerprint,
            content=content.hexdigest(),
            num_bytes=int(sizes.sum()),
            flat=flat,
            skipped=skipped,
            rules=SKIP_RULES,
        )
        columns: dict[str, npt.NDArray[Any]] = {
            "root": np.frombuffer(root, np.uint8),
            "class_names": np.frombuffer(b"".join(self.classes), np.uint8),
            "class_offsets": np.array([0, *accumulate(map(len, self.classes))], np.uint64),
            "class_counts": np.array(self.class_counts, np.int64),
            "folder_names": np.frombuffer(self._folder_names, np.uint8),
            "folder_offsets": np.frombuffer(self._folder_offsets, np.uint64),
            "folder_labels": np.frombuffer(self.folder_labels, np.int32),
            "folder_mtimes": np.frombuffer(self.folder_mtimes, np.int64),
            "folder_ctimes": np.frombuffer(self._folder_ctimes, np.int64),
            "folder_inodes": np.frombuffer(self._folder_inodes, np.uint64),
            "file_names": np.frombuffer(self._files.names, np.uint8),
            "file_offsets": _narrow(np.frombuffer(self._files.offsets, np.uint64), np.uint32),
            "file_folders": _narrow(np.frombuffer(self._files.folders, np.uint32), np.uint16),
            "file_sizes": _narrow(sizes, np.uint32),
            "file_mtimes": np.frombuffer(self._files.mtimes, np.int64),
        }
        write_index(file, header, columns)

    def _fingerprint(self) -> str:
        """Return a digest of what the data set is: number of images, paths, sizes and classes; not when or where."""
        digest = hashlib.blake2b(b"penstock image folder 1", digest_size=DIGEST_BYTES)
        digest.update(len(self._files).to_bytes(8, "little"))
        digest.update(self._paths.digest())
        digest.update(self._files.sizes)
        digest.update(array("Q", self.class_counts))
        digest.update(b"\0".join(self.classes))
        return digest.hexdigest()


def _narrow(column: npt.NDArray[Any], kind: type[np.unsignedinteger[Any]]) -> npt.NDArray[Any]:
    return column.astype(kind) if not len(column) or column.max() <= np.iinfo(kind).max else column
