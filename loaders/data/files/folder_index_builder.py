"""Builds the index of an image folder."""

from __future__ import annotations

import hashlib
from array import array
from itertools import accumulate, islice
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.folder_index import FolderIndex, IndexHeader
from penstock.loaders.system.column_file import DIGEST_BYTES, join_names, narrowest

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
    """Collect classes, folders and files one after another, then write them as one FolderIndex file.

    Args:
        files: collected elsewhere, in the order of the index.
        paths: digest of their paths.
    """

    def __init__(self, files: FileTable | None = None, paths: Any = None) -> None:
        self.classes: list[bytes] = []
        self.class_counts: list[int] = []
        self._folder_names, self._folder_offsets = bytearray(), array("Q", [0])
        self.folder_labels, self.folder_mtimes = array("i"), array("q")
        self._folder_ctimes, self._folder_inodes = array("q"), array("Q")
        self._files = files or FileTable()
        self._paths = paths or hashlib.blake2b(digest_size=DIGEST_BYTES)

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

    def write(
        self,
        file: BinaryIO,
        *,
        root: bytes,
        flat: bool,
        skipped: dict[str, int],
        examples: dict[str, str] | None = None,
        rules: bytes = b"penstock image folder 1",
        label_of: npt.NDArray[np.int32] | None = None,
        made_by: str = "",
        labels: str = "",
    ) -> None:
        """Write the index of the files below `root`; `skipped` counts what was left out, of which `examples` are.

        Raises OSError.

        rules: version of the rules of the fingerprint. label_of: of each file, where they do not follow from the number
        of files of each class. made_by, labels: as of IndexHeader.
        """
        fingerprint = self._fingerprint(rules, array("Q", self.class_counts) if label_of is None else label_of)
        content = hashlib.blake2b(fingerprint.encode(), digest_size=DIGEST_BYTES)
        content.update(self._files.mtimes)
        sizes = np.frombuffer(self._files.sizes, np.uint64)
        header = IndexHeader(
            fingerprint=fingerprint,
            content=content.hexdigest(),
            num_bytes=int(sizes.sum()),
            flat=flat,
            skipped=skipped,
            examples=examples or {},
            made_by=made_by,
            labels=labels,
        )
        class_names, class_offsets = join_names(self.classes)
        columns: dict[str, npt.NDArray[Any]] = {
            "root": np.frombuffer(root, np.uint8),
            "class_names": class_names,
            "class_offsets": class_offsets,
            "class_counts": np.array(self.class_counts, np.int64),
            "folder_names": np.frombuffer(self._folder_names, np.uint8),
            "folder_offsets": np.frombuffer(self._folder_offsets, np.uint64),
            "folder_labels": np.frombuffer(self.folder_labels, np.int32),
            "folder_mtimes": np.frombuffer(self.folder_mtimes, np.int64),
            "folder_ctimes": np.frombuffer(self._folder_ctimes, np.int64),
            "folder_inodes": np.frombuffer(self._folder_inodes, np.uint64),
            "file_names": np.frombuffer(self._files.names, np.uint8),
            "file_offsets": narrowest(np.frombuffer(self._files.offsets, np.uint64), np.uint32, np.uint64),
            "file_folders": narrowest(np.frombuffer(self._files.folders, np.uint32), np.uint16, np.uint32),
            "file_sizes": narrowest(sizes, np.uint32, np.uint64),
            "file_mtimes": np.frombuffer(self._files.mtimes, np.int64),
        }
        FolderIndex.write(file, header, columns)

    def _fingerprint(self, rules: bytes, labels: Any) -> str:
        """Return a digest of the number of images, paths, sizes and classes; it does not depend on times or root."""
        digest = hashlib.blake2b(rules, digest_size=DIGEST_BYTES)
        digest.update(len(self._files).to_bytes(8, "little"))
        for part in (self._paths.digest(), self._files.sizes, labels, b"\0".join(self.classes)):
            digest.update(part)
        return digest.hexdigest()
