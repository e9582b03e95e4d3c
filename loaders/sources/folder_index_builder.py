"""Builds the index of an image folder."""

from __future__ import annotations

import hashlib
from array import array
from itertools import accumulate, islice
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.folder_index import IndexHeader, write_index
from penstock.loaders.system.column_file import DIGEST_BYTES

# Marks a folder whose listing may change without its mtime changing: never equal to a real time.
UNSETTLED = -(1 << 63)
_CHUNK = 4096  # paths that are joined at once


class FileTable:
    """Collect image files in packed columns, in the order they were added: 28 bytes each and the name."""

    def __init__(self) -> None:
        self.names = bytearray()
        self.offsets, self.folders = array("Q", [0]), array("I")
        self.sizes, self.mtimes = array("Q"), array("q")

    def add(self, name: bytes, folder: int, size: int, mtime_ns: int) -> None:
        """Add a file: its name, the number of its folder, its size in bytes and its modification time."""
        self.names += name
        self.offsets.append(len(self.names))
        self.folders.append(folder)
        self.sizes.append(size)
        self.mtimes.append(mtime_ns)

    def __len__(self) -> int:
        return len(self.folders)

    def name(self, number: int) -> bytes:
        """Return the name of a file."""
        return bytes(self.names[self.offsets[number] : self.offsets[number + 1]])

    def sort(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the files in the order of their names (bytewise)."""
        return np.array(sorted(range(len(self)), key=self.name), np.int64)


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

    def add_files(self, label: int, files: FileTable) -> None:
        """Append the images of class `label`, sorted; their names are paths relative to the root."""
        order, table = files.sort(), self._files
        self.class_counts[label] += len(files)
        for first in range(0, len(order), _CHUNK):
            paths = [files.name(number) for number in order[first : first + _CHUNK].tolist()]
            self._paths.update(b"\0".join(paths) + b"\0")
            names = [path[path.rfind(b"/") + 1 :] for path in paths]
            table.offsets.extend(islice(accumulate(map(len, names), initial=len(table.names)), 1, None))
            table.names += b"".join(names)
        for column, unsorted in (
            (table.folders, files.folders),
            (table.sizes, files.sizes),
            (table.mtimes, files.mtimes),
        ):
            column.frombytes(np.asarray(unsorted)[order].tobytes())

    def write(self, file: BinaryIO, *, root: bytes, flat: bool, skipped: dict[str, int]) -> None:
        """Write the index of the tree at `root`; `skipped` counts what was left out. Raises OSError."""
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
        """Return a digest of the number of images, paths, sizes and classes; it does not depend on times or root."""
        digest = hashlib.blake2b(b"penstock image folder 1", digest_size=DIGEST_BYTES)
        digest.update(len(self._files).to_bytes(8, "little"))
        digest.update(self._paths.digest())
        digest.update(self._files.sizes)
        digest.update(array("Q", self.class_counts))
        digest.update(b"\0".join(self.classes))
        return digest.hexdigest()


def _narrow(column: npt.NDArray[Any], kind: type[np.unsignedinteger[Any]]) -> npt.NDArray[Any]:
    return column.astype(kind) if not len(column) or column.max() <= np.iinfo(kind).max else column
