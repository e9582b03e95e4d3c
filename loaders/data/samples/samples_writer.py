"""Collects classes, folders, containers and samples in packed columns, and writes them as an index of samples."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.samples import Samples, SamplesHeader
from penstock.loaders.data.samples.version import Container
from penstock.loaders.system.saved_columns import (
    DIGEST_BYTES,
    Columns,
    join_names,
    narrowest,
    save_in_memory,
    save_index,
)

# The rules of fingerprints, with their versions.
FOLDER_RULES, LIST_RULES = b"penstock image folder 1", b"penstock image list 1"
_RANGE_RULES = b"penstock ranges 1"
CHUNK = 4096  # number of names that are Python objects at once


class PackedNames(Sequence[bytes]):
    """A sequence of names without a Python object for each."""

    def __init__(self) -> None:
        self.text, self.ends = bytearray(), array("Q", [0])

    def append(self, name: bytes) -> None:
        """Add a name."""
        self.text += name
        self.ends.append(len(self.text))

    def extend(self, names: Sequence[bytes]) -> None:
        """Add several names."""
        if isinstance(names, PackedNames):
            ends = np.frombuffer(names.ends, np.uint64)[1:] + np.uint64(len(self.text))
            self.ends.frombytes(ends.tobytes())
            self.text += names.text
            return
        self.ends.extend(islice(accumulate(map(len, names), initial=len(self.text)), 1, None))
        self.text += b"".join(names)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, number: int) -> bytes:  # type: ignore[override]
        return bytes(self.text[self.ends[number] : self.ends[number + 1]])

    def part(self, first: int, last: int) -> Sequence[bytes]:
        """Return the names from `first` to `last`, which is excluded, as a view."""
        return _NamesPart(self, first, last)

    def take(self, numbers: npt.NDArray[np.int64]) -> PackedNames:
        """Return some of the names, in this order."""
        taken = PackedNames()
        for first in range(0, len(numbers), CHUNK):
            taken.extend([self[number] for number in numbers[first : first + CHUNK].tolist()])
        return taken

    def columns(self, table: str) -> Columns:
        """Return the columns of the names of a table."""
        offsets = np.frombuffer(self.ends, np.uint64)
        return {f"{table}_names": np.frombuffer(self.text, np.uint8), f"{table}_offsets": offsets}


class _NamesPart(Sequence[bytes]):
    def __init__(self, names: PackedNames, first: int, last: int) -> None:
        self._names, self._range = names, range(first, last)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, number: int) -> bytes:  # type: ignore[override]
        return self._names[self._range[number]]


class ContainerTable:
    """Collects containers in their order: 28 bytes each, plus the name.

    Attributes:
        names, sizes, versions: name, bytes and number of the Version of each container.
        folders: number of each container's folder.
    """

    def __init__(self) -> None:
        self.names, self.folders = PackedNames(), array("I")
        self.sizes, self.versions = array("Q"), array("q")

    def add(self, name: bytes, folder: int, size: int, version: int) -> None:
        """Add a container."""
        self.names.append(name)
        self.folders.append(folder)
        self.sizes.append(size)
        self.versions.append(version)

    def __len__(self) -> int:
        return len(self.names)


class LeftOut:
    """Counts of entries left out.

    Attributes:
        counts: reason -> number.
        examples: reason -> the first name in byte order.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, bytes] = {}

    def add(self, reason: str, name: bytes, count: int = 1) -> None:
        """Count `count` entries; `name` is the name of one of them."""
        self.counts[reason] += count
        self.examples[reason] = min(name, self.examples.get(reason, name))

    def add_all(self, other: LeftOut) -> None:
        """Add the counts of `other`."""
        for reason, count in other.counts.items():
            self.add(reason, other.examples[reason], count)


class SamplesWriter:
    """Collects the content of a Samples index, then writes it.

    Images in folders or in a list are containers in folders with labels; others are samples in containers.

    Args:
        root: folder or URL of the folders.
        rules: FOLDER_RULES or LIST_RULES for containers in folders.
        kind: as in SamplesHeader, like flat, made_by and labels_digest.

    Attributes:
        left_out: entries that are not served.
        conflicts: as in SamplesHeader.
        classes: names of the classes.
        containers: the containers.
        ctimes: `ctime_ns` of the version of each container; none for files in folders.
        paths: digest of the paths of containers in folders.
        keys, container_of, starts, sizes: of the samples in containers; starts and sizes in bytes.
        labels: class numbers (int32) of these samples.
        probe: digest of some of the samples' bytes, if keys and sizes do not identify the samples.
    """

    def __init__(self, *, root: bytes = b"", rules: bytes = b"", kind: str = "") -> None:
        self.root, self.rules, self.kind, self.flat = root, rules, kind, False
        self.made_by = self.labels_digest = ""
        self.left_out, self.conflicts = LeftOut(), (0, "")
        self.classes: list[bytes] = []
        self.folders, self.folder_labels, self.folder_mtimes = PackedNames(), array("i"), array("q")
        self._folder_ctimes, self._folder_inodes = array("q"), array("Q")
        self.containers, self.ctimes, self._inodes = ContainerTable(), array("q"), array("Q")
        self.paths = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.keys, self.labels = PackedNames(), np.zeros(0, np.int32)
        self.container_of, self.starts, self.sizes = array("q"), array("q"), array("q")
        self.probe = b""

    def add_folder(self, path: bytes, label: int, stamps: tuple[int, int, int] | None = None) -> int:
        """Add a folder, `path` relative to the root, with images of class `label`; return its number.

        stamps: mtime, ctime and inode of a listed folder; for all folders or none.
        """
        self.folders.append(path)
        self.folder_labels.append(label)
        columns = (self.folder_mtimes, self._folder_ctimes, self._folder_inodes)
        for column, stamp in zip(columns, stamps or (), strict=False):
            column.append(stamp)
        return len(self.folders) - 1

    def add_files(self, files: ContainerTable) -> None:
        """Append the images of a class, sorted by name (bytes); the names are paths relative to the root."""
        names, table = files.names, self.containers
        order = np.array(sorted(range(len(files)), key=names.__getitem__), np.int64)
        for first in range(0, len(order), CHUNK):
            paths = [names[number] for number in order[first : first + CHUNK].tolist()]
            self.paths.update(b"\0".join(paths) + b"\0")
            table.names.extend([path[path.rfind(b"/") + 1 :] for path in paths])
        for column in ("folders", "sizes", "versions"):
            getattr(table, column).frombytes(np.asarray(getattr(files, column))[order].tobytes())

    def add_container(self, container: Container) -> int:
        """Add a container without a folder; return its number."""
        name, size, version = container
        self.containers.names.append(name)
        self.containers.sizes.append(size)
        self.containers.versions.append(version.number)
        self.ctimes.append(version.ctime_ns)
        self._inodes.append(version.inode)
        return len(self.containers) - 1

    def add_samples(
        self, container_of: npt.ArrayLike, starts: npt.ArrayLike, sizes: npt.ArrayLike, keys: Sequence[bytes]
    ) -> None:
        """Add samples: numbers of their containers, offsets in them, sizes in bytes (int64 [n]), and keys."""
        columns = ((self.container_of, container_of), (self.starts, starts), (self.sizes, sizes))
        for column, values in columns:
            column.frombytes(np.ascontiguousarray(values, np.int64).tobytes())
        self.keys.extend(keys)

    def keep(self, samples: npt.NDArray[np.int64]) -> None:
        """Keep only these samples, in this order."""
        if np.array_equal(samples, np.arange(len(self.keys))):
            return
        self.keys = self.keys.take(samples)
        for name in ("container_of", "starts", "sizes"):
            setattr(self, name, array("q", np.asarray(getattr(self, name))[samples].tobytes()))

    def save(self, name: bytes | None = None) -> Samples:
        """Write the index to the user's cache folder, or to memory without a `name`, and map it."""
        return save_in_memory(self.write, Samples) if name is None else save_index(name, self.write, Samples)

    def write(self, file: BinaryIO) -> None:
        """Write the index. Raises OSError."""
        table, has_ranges = self.containers, len(self.keys) > 0
        folders = np.frombuffer(table.folders, np.uint32)
        labels = self.labels if has_ranges else np.frombuffer(self.folder_labels, np.int32)[folders]
        counts = np.bincount(labels, minlength=len(self.classes)).astype(np.int64)
        starts, sizes = np.asarray(self.starts), np.asarray(self.sizes)
        if has_ranges:
            fingerprint, content = self._identify_ranges()
        else:
            fingerprint, content = self._identify_files(counts if self.rules == FOLDER_RULES else labels)
        class_names, class_offsets = join_names(self.classes)
        header = SamplesHeader(
            fingerprint=fingerprint,
            content=content,
            num_bytes=int(np.sum(sizes if has_ranges else table.sizes)),
            skipped=dict(self.left_out.counts),
            examples={reason: os.fsdecode(name) for reason, name in self.left_out.examples.items()},
            made_by=self.made_by,
            labels=self.labels_digest,
            kind=self.kind,
            flat=self.flat,
            conflicts=self.conflicts,
        )
        has_stamps = any(self._inodes)
        columns: Columns = {
            "root": np.frombuffer(self.root, np.uint8),
            "class_names": class_names,
            "class_offsets": class_offsets,
            "class_counts": counts,
            **self.folders.columns("folder"),
            "folder_labels": np.frombuffer(self.folder_labels, np.int32),
            "folder_mtimes": np.frombuffer(self.folder_mtimes, np.int64),
            "folder_ctimes": np.frombuffer(self._folder_ctimes, np.int64),
            "folder_inodes": np.frombuffer(self._folder_inodes, np.uint64),
            **table.names.columns("container"),
            "container_folders": narrowest(folders, np.uint16, np.uint32),
            "container_sizes": narrowest(np.frombuffer(table.sizes, np.uint64), np.uint32, np.uint64),
            "container_versions": np.frombuffer(table.versions, np.int64),
            "container_ctimes": np.array(self.ctimes if any(self.ctimes) else (), np.int64),
            "container_inodes": np.array(self._inodes if has_stamps else (), np.uint64),
            **self.keys.columns("sample"),
            "sample_containers": narrowest(np.asarray(self.container_of), np.uint8, np.uint16, np.uint32),
            "sample_starts": narrowest(starts, np.uint32, np.uint64),
            "sample_sizes": narrowest(sizes, np.uint32, np.uint64),
            "sample_labels": self.labels.astype(np.int32),
        }
        for name in ("container_offsets", "sample_offsets"):
            columns[name] = narrowest(columns[name], np.uint32, np.uint64)
        Samples.write(file, header, columns)

    def _identify_files(self, labels: npt.NDArray[np.integer]) -> tuple[str, str]:
        """Return digests of the number of images, paths, sizes and classes; the second also covers versions."""
        table = self.containers
        digest = hashlib.blake2b(self.rules, digest_size=DIGEST_BYTES)
        digest.update(len(table).to_bytes(8, "little"))
        for part in (self.paths.digest(), table.sizes, np.ascontiguousarray(labels).data, b"\0".join(self.classes)):
            digest.update(part)
        fingerprint = digest.hexdigest()
        content = hashlib.blake2b(fingerprint.encode(), digest_size=DIGEST_BYTES)
        content.update(table.versions)
        return fingerprint, content.hexdigest()

    def _identify_ranges(self) -> tuple[str, str]:
        """Return digests of keys, sizes, labels and classes; the second also covers containers, except their names."""
        digest, table = hashlib.blake2b(_RANGE_RULES, digest_size=DIGEST_BYTES), self.containers
        lengths, sizes = np.diff(np.asarray(self.keys.ends)), np.asarray(self.sizes)
        for part in (self.keys.text, lengths, sizes, self.labels.astype(np.int32), *join_names(self.classes)):
            digest.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
        digest.update(self.probe)
        fingerprint = digest.hexdigest()
        for column in (table.sizes, table.versions, self.container_of, self.starts):
            digest.update(column)
        return fingerprint, digest.hexdigest()
