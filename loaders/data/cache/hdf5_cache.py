"""An HDF5 cache as a source of whole images, checked by their CRCs; the native library reads only crops."""

from __future__ import annotations

import contextlib
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.cache.format import FILE, PIXELS, RECORD, STRIPS, About, Record, crc32
from penstock.loaders.data.cache.hdf5_file import CacheFile
from penstock.loaders.data.cache.shards import MANIFEST, check_shards, is_shard_name, read_manifest
from penstock.loaders.data.fields.packed_fields import join_fields
from penstock.loaders.data.samples.columns import ArrayColumn, RaggedColumn, take_values
from penstock.loaders.data.sources.sample import BySample, out_of_range
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.errors import LoaderError, count_text, size_text
from penstock.pipelines.jpeg.header import EOI
from penstock.pipelines.native import rows as native
from penstock.pipelines.native.locate import locate_stored
from penstock.pipelines.native.rows import NO_NAMES, Names, Rows

_STRIP = struct.Struct("<II")
_CRC = struct.Struct("<I")
_FEW = 64
Data = TypeVar("Data", bytes, npt.NDArray[np.uint8])
_NATIVE_KINDS = np.array([native.STORED, native.STRIPS, native.PIXELS], np.uint8)  # indexed by FILE, STRIPS, PIXELS
_LOCATED = tuple(name for name in RECORD.names or () if name not in ("length", "label", "kind"))


class Hdf5Cache(BySample):
    """A source of the images of one cache file, or of the shards of a set, in the order of the original source.

    Opening checks the structure and the tables of the files; each read checks the CRC of its bytes. The tables, 42
    bytes per image, are in shared memory. Pickles only while a process is being started, as SharedArray does. HDF5 is
    closed after opening, and any thread may read (pread).
    """

    is_cache = True

    def __init__(self, files: Sequence[CacheFile]) -> None:
        counts = [file.about.samples for file in files]
        pictures = files[0].about.pictures
        shared = SharedArray.create((1 + len(pictures), sum(counts)), RECORD, name="penstock-cache")
        stop = 0
        for file, count in zip(files, counts, strict=True):
            for number, records in enumerate(shared.array):
                file.load_records(records[stop : stop + count], number * count)
            stop += count
        self._take(tuple(files), shared, join_fields(files[0].about.fields, [file.read_fields() for file in files]))

    def _take(
        self, files: tuple[CacheFile, ...], shared: SharedArray, columns: dict[str, RaggedColumn | ArrayColumn]
    ) -> None:
        self.files, self._shared, self._columns, self.records = files, shared, columns, shared.array[0]
        self._pictures = dict(zip(files[0].about.pictures, shared.array[1:], strict=True))
        self.field_kinds = {each.name: each.kind for each in files[0].about.fields}
        self._records_at = self.records.ctypes.data
        self.about = [file.about for file in files]
        self._starts = [0, *np.cumsum([about.samples for about in self.about]).tolist()]
        self.fingerprint = self.about[0].fingerprint
        self.classes = tuple(name.encode("utf-8", "surrogateescape") for name in self.about[0].classes)
        self.skipped: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.records)

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images `indices` (int64)."""
        labels: npt.NDArray[np.int64] = self.records["label"][indices].astype(np.int64)
        return labels

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the place and the coding of images `indices`."""
        if len(self.files) == 1 and locate_stored(
            self._records_at, len(self.records), self.files[0].payload, indices, rows
        ):
            return NO_NAMES
        records = self.records[indices]
        for name in _LOCATED:
            rows[name] = records[name]
        rows["size"], rows["kind"] = records["length"], _NATIVE_KINDS[records["kind"]]
        shards = np.searchsorted(self._starts, indices, "right") - 1
        for shard in np.unique(shards).tolist():
            rows["fd"][shards == shard], start = self.files[shard].payload
            rows["offset"][shards == shard] += start
        return NO_NAMES

    def stored_orientation(self, index: int) -> int:
        """Return the EXIF orientation of image `index`, 1 to 8; 0 if the stored file contains it."""
        record = self._record(index)
        return 0 if record.kind == FILE else record.orientation

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Read a whole image: the source's bytes, a JPEG with restart markers, or pixels [h, w, 3]. Raises E-CACHE."""
        record = self._record(index)
        with self._file_of(index) as file:
            if record.kind == PIXELS:
                return _read_pixels(file, record)
            if record.kind == STRIPS:
                return _read_strips(file, record)
            return _check_crc(file.read(record.offset, record.length), 0, record.crc)

    def fields(self, indices: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of images `indices` by name, except masks and image targets."""
        return {name: take_values(self.field_kinds[name], column, indices) for name, column in self._columns.items()}

    def mask(self, name: str, index: int) -> bytes:
        """Read mask or image target `name` of image `index`, an encoded file. Raises E-CACHE."""
        record = Record._make(self._pictures[name][index].item())
        with self._file_of(index) as file:
            return _check_crc(file.read(record.offset, record.length), 0, record.crc)

    def stored(self, index: int) -> bytes:
        """Read all stored bytes of image `index`, unchecked."""
        record, (file, _) = self._record(index), self._place(index)
        return file.read(record.offset, record.length)

    def name(self, index: int) -> bytes:
        """Return the name of image `index` in the source."""
        file, place = self._place(index)
        return file.name(place)

    def path(self, index: int) -> bytes:
        """Return the name of image `index` in error texts: the cache file's path, a colon, the image's name."""
        file, place = self._place(index)
        return file.path + b":" + file.name(place)

    def describe(self) -> str:
        """Return one line with images, classes, bytes and encoding."""
        images = count_text(len(self), "image")
        classes = count_text(len(self.classes), "class")
        num_bytes = sum(about.payload_bytes for about in self.about)
        shards = f" in {len(self.files):,} shards" * (len(self.files) > 1)
        stored = f"(HDF5 cache{shards}: {self.about[0].coded.describe()})"
        fields = f", with {', '.join(self.field_kinds)}" if self.field_kinds else ""
        return f"{images}, {classes}, {size_text(num_bytes)} {stored}{fields}"

    def _record(self, index: int) -> Record:
        if index < 0:
            raise out_of_range(index, len(self))
        return Record._make(self.records[index].item())

    def _place(self, index: int) -> tuple[CacheFile, int]:
        """Return the file that contains image `index`, and its number in the file."""
        shard = bisect_right(self._starts, index) - 1 if len(self.files) > 1 else 0
        return self.files[shard], index - self._starts[shard]

    @contextlib.contextmanager
    def _file_of(self, index: int) -> Iterator[CacheFile]:
        """Yield the file that contains image `index`; errors of the block name both."""
        file, place = self._place(index)
        try:
            yield file
        except LoaderError as error:
            path = file.path + b":" + file.name(place)
            raise LoaderError(error.code, error.cause, fix=error.fix, sample=index, path=path) from error

    def __getstate__(self) -> tuple[Any, ...]:
        return self.files, self._shared, self._columns

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._take(*state)


def open_cache(path: str | bytes | os.PathLike[Any], *, any_owner: bool = False) -> Hdf5Cache:
    """Open the cache at `path`, one file or a folder of shards.

    `any_owner` also accepts files of other users. Raises LoaderError E-CACHE, E-MISSING, E-ACCESS, E-DEPENDENCY.
    """
    name = os.fsencode(path)
    if not os.path.isdir(name):
        return Hdf5Cache([CacheFile(name, any_owner=any_owner)])
    shards = read_manifest(name)
    files = [CacheFile(os.path.join(name, part), any_owner=any_owner) for part in shards.names]
    check_shards(name, shards, [file.about for file in files])
    return Hdf5Cache(files)


def known_cache(path: str | bytes | os.PathLike[Any]) -> About | None:
    """Return the metadata of the cache at `path` (for a set, of its first shard); None without a complete cache."""
    name = os.fsencode(path)
    try:
        part = os.path.join(name, read_manifest(name).names[0]) if os.path.isdir(name) else name
        return CacheFile(part).about if os.path.exists(part) else None
    except LoaderError:
        return None  # opening it reports the error


def is_cache_set(path: bytes) -> bool:
    """Return whether `path` is a folder with shards, whether or not the set is complete."""
    if not os.path.isdir(path):
        return False
    with os.scandir(path) as entries:  # in a folder of images, only the first few names are checked
        return any(entry.name == MANIFEST or is_shard_name(entry.name) for entry in islice(entries, _FEW))


def _check_crc(data: Data, before: int, expected: int) -> Data:
    if crc32(data, before) != expected:
        raise LoaderError("E-CACHE", f"the CRC of {len(data):,} stored bytes differs: the file was damaged")
    return data


def _read_strips(file: CacheFile, record: Record) -> bytes:
    """Read a JPEG with restart markers; check the CRCs of its head and of its last strip."""
    rows = -(-record.height // record.mcu_height)
    table_bytes = _STRIP.size * -(-rows // record.strip_rows)
    head = _check_crc(file.read(record.offset, record.head), 0, record.crc)
    size, crc = _STRIP.unpack_from(head, table_bytes - _STRIP.size)
    if size != record.length - record.head:
        raise LoaderError("E-CACHE", "the strips of this image do not match its length")
    scan = _check_crc(file.read(record.offset + record.head, size), 0, crc)
    return b"".join((head[table_bytes:], scan, EOI))


def _read_pixels(file: CacheFile, record: Record) -> npt.NDArray[np.uint8]:
    """Read stored pixels; check the CRCs of the head and of the last strip."""
    head = _check_crc(file.read(record.offset, record.head), 0, record.crc)
    pixels = np.empty((record.height, record.width, 3), np.uint8)
    flat = pixels.reshape(-1)
    file.read_into(record.offset + record.head, flat)
    _check_crc(flat, 0, _CRC.unpack_from(head, record.head - _CRC.size)[0])
    return pixels
