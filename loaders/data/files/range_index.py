"""Looks up samples that lie in containers: which container, where in it, how many bytes, which label and key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.folder_index import FolderIndex, ImagesHeader, as_prefix
from penstock.loaders.data.samples.version import Container, Version
from penstock.loaders.system.column_file import DIGEST_BYTES, Columns, join_names, narrowest, split_names
from penstock.loaders.system.saved_columns import SavedIndex

FORMAT = 3
COLUMNS: dict[str, tuple[str, ...]] = {
    "class_names": ("|u1",),
    "class_offsets": ("<u8",),
    "container_names": ("|u1",),
    "container_offsets": ("<u8",),
    "container_sizes": ("<i8",),
    "container_mtimes": ("<i8",),
    "container_ctimes": ("<i8",),
    "container_inodes": ("<u8",),
    "sample_names": ("|u1",),
    "sample_offsets": ("<u4", "<u8"),
    "sample_containers": ("|u1", "<u2", "<u4"),
    "sample_starts": ("<u4", "<u8"),
    "sample_sizes": ("<u4", "<u8"),
    "sample_labels": ("<i4",),
}


@dataclass(frozen=True, kw_only=True)
class RangeHeader(ImagesHeader):
    """Describe an index of samples in containers; `kind` says in words what these are: "tar files"."""

    kind: str
    format: int = FORMAT


class RangeIndex(SavedIndex):
    """Look up the ranges of samples.

    Attributes:
        classes: class names, by class number.
        container_sizes: bytes of the files that hold the samples.
        starts, sizes: of each sample the offset in its container and its bytes.
        container_of, labels: of each sample the number of its container and its class number.
    """

    kinds, header_class = COLUMNS, RangeHeader
    header: RangeHeader

    def __init__(self, path: bytes, verify: bool = True) -> None:
        super().__init__(path, verify)
        columns = self.file.columns
        self.classes = split_names(columns["class_names"], columns["class_offsets"])
        self.container_of, self.labels = columns["sample_containers"], columns["sample_labels"]
        self.starts, self.sizes = columns["sample_starts"], columns["sample_sizes"]
        self._keys, self._key_offsets = columns["sample_names"], columns["sample_offsets"]
        self._containers, self._container_offsets = columns["container_names"], columns["container_offsets"]
        self.container_sizes, self._container_mtimes = columns["container_sizes"], columns["container_mtimes"]

    def __len__(self) -> int:
        return len(self.container_of)

    def labels_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of samples."""
        return self.labels[indices].astype(np.int64)

    @property
    def num_containers(self) -> int:
        return len(self.container_sizes)

    def container(self, number: int) -> Container:
        name = self._containers[self._container_offsets[number] : self._container_offsets[number + 1]].tobytes()
        version = int(self._container_mtimes[number])
        size, columns = int(self.container_sizes[number]), self.file.columns
        if not name.startswith(b"/"):
            return Container(name, size, Version.of_stored_object(version))
        stamps = int(columns["container_ctimes"][number]), int(columns["container_inodes"][number])
        return Container(name, size, Version(version, *stamps))

    @property
    def container_versions(self) -> npt.NDArray[np.int64]:
        """The time or version of each container, int64."""
        return self._container_mtimes

    def containers(self) -> Iterator[Container]:
        """Return all containers."""
        return map(self.container, range(self.num_containers))

    def places(self) -> Iterator[bytes]:
        """Return what says, together with the content, where the samples lie: the paths of all containers."""
        return (container.name for container in self.containers())

    def has_same_files(self) -> bool:
        """Return whether the containers, which are files, are the very ones that were indexed (3 us each)."""
        return all(container.is_unchanged() for container in self.containers())

    def key(self, index: int) -> bytes:
        """Return the key of a sample: its name within its container."""
        return self._keys[self._key_offsets[index] : self._key_offsets[index + 1]].tobytes()

    def locate(self, indices: npt.NDArray[np.int64], rows: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
        """Fill `rows` with the places of samples `indices`; return the names of all containers."""
        containers = self.container_of[indices].astype(np.int64)
        begin = self._container_offsets[containers].astype(np.int64)
        rows["name"], rows["name_bytes"] = begin, self._container_offsets[containers + 1].astype(np.int64) - begin
        rows["offset"], rows["size"] = self.starts[indices], self.sizes[indices]
        rows["file_size"], rows["mtime_ns"] = self.container_sizes[containers], self._container_mtimes[containers]
        return self._containers


class FileRanges:
    """Show the images of a folder's index as RangeIndex shows its samples: each is a whole container."""

    def __init__(self, index: FolderIndex) -> None:
        self._index = index
        self.sizes: npt.NDArray[Any] = index.file.columns["file_sizes"]
        self.container_sizes, self.container_of = self.sizes, np.arange(index.num_files, dtype=np.uint32)
        self.starts = np.broadcast_to(np.zeros(1, np.uint8), index.num_files)
        self.container_versions = index.file.columns["file_mtimes"].view(np.int64)

    def __len__(self) -> int:
        return len(self.sizes)

    def places(self) -> Iterator[bytes]:
        """Return what says, together with the content, where the samples lie: the root of their names."""
        yield self._index.root

    def container(self, number: int) -> Container:
        """Return image `number` as a container."""
        path = as_prefix(self._index.root) + self._index.relative_path(number)
        stored = self._index.mtime_ns(number)
        version = Version(stored) if path.startswith(b"/") else Version.of_stored_object(stored)
        return Container(path, self._index.size(number), version)


Ranges = RangeIndex | FileRanges


@dataclass(kw_only=True)
class RangeTable:
    """Hold the columns of an index that is being made, in the order of the samples.

    Attributes:
        kind: as in RangeHeader, as made_by, skipped, examples and labels_digest.
        containers: the files.
        container_of: number of the container of each sample.
        starts, sizes: offset and bytes of each sample there.
        labels: class number of each sample.
        keys: key of each sample.
        classes: class names.
        content_digest: of some of the samples' bytes, where keys and sizes do not tell the samples apart; b"" for none.
    """

    kind: str
    containers: Sequence[Container]
    container_of: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    keys: list[bytes]
    classes: Sequence[bytes]
    made_by: str = ""
    skipped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    labels_digest: str = ""
    content_digest: bytes = b""

    def write(self, file: BinaryIO) -> None:
        """Write the index. Raises OSError."""
        key_names, key_offsets = join_names(self.keys)
        class_names, class_offsets = join_names(list(self.classes))
        container_names, container_offsets = join_names([container.name for container in self.containers])
        sizes = narrowest(self.sizes, np.uint32, np.uint64)
        labels = self.labels.astype(np.int32)
        identity = hashlib.blake2b(b"penstock ranges 1", digest_size=DIGEST_BYTES)
        key_lengths = np.diff(key_offsets)
        for part in (key_names, key_lengths, sizes.astype(np.uint64), labels, class_names, class_offsets):
            identity.update(np.ascontiguousarray(part).data)
        container_sizes = np.array([container.size for container in self.containers], np.int64)
        container_mtimes = np.array([container.version.number for container in self.containers], np.int64)
        if self.content_digest:
            identity.update(self.content_digest)
        fingerprint = identity.hexdigest()
        for part in (container_sizes, container_mtimes, self.container_of, self.starts):  # not names: data may move
            identity.update(np.ascontiguousarray(part).data)
        header = RangeHeader(
            kind=self.kind,
            fingerprint=fingerprint,
            content=identity.hexdigest(),
            num_bytes=int(self.sizes.sum()),
            made_by=self.made_by,
            labels=self.labels_digest,
            skipped=self.skipped,
            examples=self.examples,
        )
        columns: Columns = {
            "class_names": class_names,
            "class_offsets": class_offsets,
            "container_names": container_names,
            "container_offsets": container_offsets,
            "container_sizes": container_sizes,
            "container_mtimes": container_mtimes,
            "container_ctimes": np.array([each.version.ctime_ns for each in self.containers], np.int64),
            "container_inodes": np.array([each.version.inode for each in self.containers], np.uint64),
            "sample_names": key_names,
            "sample_offsets": narrowest(key_offsets, np.uint32, np.uint64),
            "sample_containers": narrowest(self.container_of, np.uint8, np.uint16, np.uint32),
            "sample_starts": narrowest(self.starts, np.uint32, np.uint64),
            "sample_sizes": sizes,
            "sample_labels": labels,
        }
        RangeIndex.write(file, header, columns)
