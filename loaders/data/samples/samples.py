"""Looks up samples in a mapped index: their containers, and their places in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.version import MISSING, Container, Version
from penstock.loaders.system.json_file import ByteText
from penstock.loaders.system.saved_columns import SavedIndex, split_names
from penstock.pipelines.native.locate import FileTables
from penstock.pipelines.native.rows import FILE, NO_NAMES, Names, Rows

FORMAT = 5  # version of the file, and of the rules for ordering and counting samples
# Name -> possible types; the file contains the header and these columns, in this order, in the format of numpy.save.
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
    "container_names": ("|u1",),
    "container_offsets": ("<u4", "<u8"),
    "container_folders": ("<u2", "<u4"),
    "container_sizes": ("<u4", "<u8"),
    "container_versions": ("<i8",),
    "container_ctimes": ("<i8",),
    "container_inodes": ("<u8",),
    "sample_names": ("|u1",),
    "sample_offsets": ("<u4", "<u8"),
    "sample_containers": ("|u1", "<u2", "<u4"),
    "sample_starts": ("<u4", "<u8"),
    "sample_sizes": ("<u4", "<u8"),
    "sample_labels": ("<i4",),
}
_STAMPS = ("folder_mtimes", "folder_ctimes", "folder_inodes", "container_ctimes", "container_inodes")
_MAX_NAME_BYTES = 1 << 16  # no system opens a file with a longer name
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SamplesHeader:
    """The header of an index of samples, stored in the file as JSON.

    Attributes:
        fingerprint: hex digest that identifies names, sizes and labels of the samples.
        content: hex digest that also covers their places, and the versions of their containers.
        num_bytes: total size of all samples.
        skipped: reason -> number of skipped entries.
        examples: reason -> name of one of them.
        made_by: identity of a table or options that decide the content; compared before a saved index is used.
        labels: hex digest of the labels next to this index, if they are not class numbers.
        kind: kind of the containers, in words: "tar files"; "" if each is a sample.
        flat: whether the samples have no labels and form one class.
        conflicts: number of images that are listed with different labels, and the first one in words.
    """

    fingerprint: str
    content: str
    num_bytes: int
    skipped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, ByteText] = field(default_factory=dict)
    made_by: str = ""
    labels: str = ""
    kind: str = ""
    flat: bool = False
    conflicts: tuple[int, str] = (0, "")
    format: int = FORMAT


class Samples(SavedIndex):
    """A table of samples, without a Python object for each and without redundant columns.

    A container is a file or object. Containers may be in folders, which have the labels; names of containers are
    relative to folders, names of folders to the root. In an index kept in a bucket, names of containers without folders
    are relative to the root, too, which is not stored. If each container is one sample, there is no sample table.

    Attributes:
        root: folder or URL of the folders, or of the containers if their names are relative; else b"".
        classes, class_counts: names of the classes, and the number of samples of each.
        has_ranges: whether samples are parts of containers.
        has_folders, has_stamps: whether containers are in folders, and have ctime and inode.
        are_objects: whether containers are objects at URLs.
        sizes: bytes of each sample.
        container_sizes, versions: bytes of each container, and the number of its Version.
        times: `ctime_ns` of the versions of objects; empty if none is known.
    """

    kinds, header_class, optional = COLUMNS, SamplesHeader, ("container_folders", *_STAMPS)
    header: SamplesHeader

    def __init__(self, path: bytes, verify: bool = True) -> None:
        super().__init__(path, verify)
        self._columns = columns = self.file.columns
        self.root = columns["root"].tobytes()
        self.classes = split_names(columns["class_names"], columns["class_offsets"])
        self.class_counts = columns["class_counts"]
        self.num_folders, self.num_containers = len(columns["folder_labels"]), len(columns["container_sizes"])
        self.has_ranges, self.has_folders = len(columns["sample_containers"]) > 0, self.num_folders > 0
        self.has_stamps = len(columns["container_inodes"]) > 0
        self.container_sizes, self.versions = columns["container_sizes"], columns["container_versions"]
        self.times = columns["container_ctimes"] if not self.has_stamps else columns["container_ctimes"][:0]
        self.sizes = columns["sample_sizes"] if self.has_ranges else self.container_sizes
        self._tables = None if self.has_ranges else FileTables(columns)
        # A memoryview returns Python integers in a third of the time that numpy needs for a scalar.
        self._scalars = {name: column.data for name, column in columns.items()}
        place = self.root if self.has_folders or not self.num_containers else self._name("container", 0)
        self.are_objects = not place.startswith(b"/")

    def __len__(self) -> int:
        return len(self.sizes)

    def labels_of(self, indices: Indices) -> Indices:
        """Return the class numbers (int64) of samples."""
        columns = self._columns
        if self.has_ranges:
            return columns["sample_labels"][indices].astype(np.int64)
        return columns["folder_labels"][columns["container_folders"][indices]].astype(np.int64)

    def key(self, index: int) -> bytes:
        """Return the name of a sample within its container; b"" if it is the whole container."""
        return self._name("sample", index) if self.has_ranges else b""

    def place(self, index: int) -> tuple[int, int, int]:
        """Return the number of a sample's container, the sample's offset in it, and its size in bytes."""
        table = self._scalars
        if not self.has_ranges:
            return index, 0, table["container_sizes"][index]
        return table["sample_containers"][index], table["sample_starts"][index], table["sample_sizes"][index]

    def container_of(self, indices: Indices) -> Indices:
        """Return the numbers (int64) of the containers of samples."""
        return self._columns["sample_containers"][indices].astype(np.int64) if self.has_ranges else indices

    def starts(self, indices: Indices) -> Indices:
        """Return the offsets (int64) of samples in their containers."""
        return self._columns["sample_starts"][indices].astype(np.int64) if self.has_ranges else np.zeros_like(indices)

    def at(self, root: bytes) -> Samples:
        """Return the same samples below another root: a link to the indexed folder, or a mirror of a bucket."""
        moved = Samples.__new__(Samples)
        moved.__dict__.update(self.__dict__, root=root)
        return moved

    @property
    def prefix(self) -> bytes:
        """The prefix of the names of containers."""
        return as_prefix(self.root) if self.has_folders or self.root else b""

    def folder(self, number: int) -> bytes:
        """Return the path of a folder relative to the root; b"" is the root."""
        return self._name("folder", number)

    def container_name(self, number: int) -> bytes:
        """Return the name of a container relative to the root; without folders, its whole path or URL."""
        name = self._name("container", number)
        folder = self.folder(self._scalars["container_folders"][number]) if self.has_folders else b""
        return folder + b"/" + name if folder else name

    def container_names(self, numbers: npt.NDArray[np.int64]) -> list[bytes]:
        """Return the names of several containers, as container_name, in a third of the time per name."""
        text, offsets = self._scalars["container_names"], self._columns["container_offsets"]
        ranges = zip(offsets[numbers].tolist(), offsets[numbers + 1].tolist(), strict=True)
        names = [bytes(text[begin:end]) for begin, end in ranges]
        if not self.has_folders:
            return names
        of_each = self._columns["container_folders"][numbers].tolist()
        folders = {number: path and path + b"/" for number, path in ((n, self.folder(n)) for n in set(of_each))}
        return [folders[number] + name for number, name in zip(of_each, names, strict=True)]

    def container(self, number: int) -> Container:
        """Return a container."""
        table = self._scalars
        stored = table["container_versions"][number]
        if self.are_objects:
            version = Version.of_stored_object(stored, table["container_ctimes"][number] if len(self.times) else 0)
        elif self.has_stamps:
            version = Version(stored, table["container_ctimes"][number], table["container_inodes"][number])
        else:
            version = Version(stored)
        return Container(self.prefix + self.container_name(number), table["container_sizes"][number], version)

    def containers(self) -> Iterator[Container]:
        """Return all containers."""
        return map(self.container, range(self.num_containers))

    def folder_stamps(self) -> Iterator[tuple[bytes, tuple[int, int, int]]]:
        """Yield path, mtime, ctime and inode of each folder that was listed; none for a list."""
        mtimes, ctimes, inodes = (self._columns[f"folder_{name}"].tolist() for name in ("mtimes", "ctimes", "inodes"))
        stamps: Iterator[tuple[int, int, int]] = zip(mtimes, ctimes, inodes, strict=True)
        return ((self.folder(number), own) for number, own in enumerate(stamps))

    def find_unknown(self) -> int | None:
        """Return the first container with an unknown version; None if there is none."""
        unknown = np.flatnonzero((self.versions < 0) & (self.versions != MISSING.number))
        return int(unknown[0]) if self.are_objects and len(unknown) else None

    def names(self) -> Names:
        """Return the names that located rows point into."""
        names = self._columns["container_names"]
        if not self.has_folders:
            return NO_NAMES._replace(names=names)
        return Names(self.prefix, self._columns["folder_names"], names)

    def locate(self, indices: Indices, rows: Rows, max_file_bytes: int = 1 << 62) -> None:
        """Fill `rows` (ROW [n], zeroed) with the places of samples `indices`; their names are in names().

        A sample larger than `max_file_bytes` stays ELSEWHERE.
        """
        if self._tables is not None and self._tables.locate(indices, rows, max_file_bytes):
            return
        columns, containers = self._columns, self.container_of(indices)
        sound = self._find_names("container", containers, rows, "name")
        if self.has_folders:
            sound &= self._find_names("folder", columns["container_folders"][containers], rows, "folder")
        rows["name_bytes"] = np.where(sound, rows["name_bytes"], 0)  # so that Python reads it
        rows["offset"], rows["size"] = self.starts(indices), self.sizes[indices]
        rows["file_size"], rows["mtime_ns"] = self.container_sizes[containers], self.versions[containers]
        rows["kind"] = np.where(rows["size"] <= max_file_bytes, FILE, rows["kind"])

    def _find_names(self, table: str, numbers: npt.NDArray[np.integer], rows: Rows, to: str) -> npt.NDArray[np.bool_]:
        """Set the places of names; return which are sound: a digest does not prove that an index is benign."""
        offsets, total = self._columns[f"{table}_offsets"], len(self._columns[f"{table}_names"])
        begin, end = offsets[numbers].astype(np.int64), offsets[numbers.astype(np.int64) + 1].astype(np.int64)
        rows[to], rows[f"{to}_bytes"] = begin, end - begin
        sound: npt.NDArray[np.bool_] = (begin >= 0) & (begin <= end) & (end <= total)
        sound &= end - begin < _MAX_NAME_BYTES
        return sound

    def _name(self, table: str, number: int) -> bytes:
        offsets = self._scalars[f"{table}_offsets"]
        return bytes(self._scalars[f"{table}_names"][offsets[number] : offsets[number + 1]])


def as_prefix(root: bytes) -> bytes:
    """Return the prefix of names in an index: the root, with a slash at the end."""
    return root if root.endswith(b"/") else root + b"/"
