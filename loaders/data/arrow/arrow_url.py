"""Fetches of an Arrow file by URL what says where its images lie, and not the images."""

from __future__ import annotations

import os
import struct
import weakref
from typing import Any

from penstock.loaders.data.arrow.arrow_columns import holds_bytes
from penstock.loaders.data.arrow.arrow_package import import_pyarrow
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.samples.version import Container
from penstock.pipelines.errors import LoaderError

MAGIC = b"ARROW1"
_WINDOW = 1 << 16  # bytes that are fetched at once: metadata of a batch, and often what follows
_MOST_METADATA = 1 << 28  # bytes of one message
UNCOMPRESSED = (
    "write it uncompressed: pyarrow.ipc.new_file(path, schema), write_feather(..., compression='uncompressed'), or "
    "datasets' save_to_disk"
)
_DICTIONARY, _RECORDS = 2, 3  # types of messages (format/Message.fbs of Arrow)
_Buffer = tuple[int, int]  # offset, bytes


class SparseArrow:
    """Hold a file (memfd) of the size of an Arrow file by URL, with zeros in place of what was not fetched.

    Readers of Arrow map it: they look at metadata, offsets and labels, and never at the bytes of images.

    Attributes:
        container: name, size and version of the object.
        fd: descriptor of the file, open while this object lives.
    """

    def __init__(self, url: bytes, store: ObjectStore) -> None:
        self._store, self._url = store, url.decode()
        self.container = Container(url, *store.stat(self._url))
        self.fd = os.memfd_create("penstock-arrow", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.fd).atexit = False
        size = self.container.size
        os.ftruncate(self.fd, size)
        self._done: list[tuple[int, int]] = []
        self._begin, self._end = 0, size
        if self._read(0, len(MAGIC)) == MAGIC:
            length = int.from_bytes(self._read(size - 10, 4), "little", signed=True)
            self._begin, self._end = 8, max(8, size - 10 - max(0, length))
            self._fetch(self._end, size)

    def fetch_columns(self, schema: Any, names: list[str]) -> None:
        """Fetch what the columns `names` need in all record batches, but the bytes of images; dictionaries too.

        Raises LoaderError, ValueError for metadata that makes no sense.
        """
        wanted = _choose_buffers(schema, names)
        at = self._begin
        while at + 8 <= self._end:
            begin, length = at + 8, _number(self._read(at + 4, 4))
            if self._read(at, 4) != b"\xff\xff\xff\xff":  # of versions before 0.15
                begin, length = at + 4, _number(self._read(at, 4))
            if length == 0 or begin + length > self._end:
                return
            if not 0 < length < _MOST_METADATA:
                raise ValueError(f"a message of {length:,} bytes of metadata")
            kind, body, buffers = _parse(self._read(begin, length))
            at = begin + length + body
            if kind == _DICTIONARY or buffers is None:
                self._fetch(begin + length, at)
                continue
            for offset, size in (buffers[number] for number in wanted if number < len(buffers)):
                self._fetch(begin + length + offset, begin + length + offset + size)

    def _read(self, start: int, count: int) -> bytes:
        self._fetch(start, start + count)
        return os.pread(self.fd, count, max(0, start))

    def _fetch(self, start: int, end: int) -> None:
        """Fetch a range, unless it is here; at least a window, because what follows is often wanted next."""
        start, end = max(0, start), min(end, self.container.size)
        if start >= end or any(first <= start and end <= last for first, last in self._done[-8:]):
            return
        end = min(max(end, start + _WINDOW), self.container.size)
        part = self._store.read(self._url, start, end - start, self.container.version)
        view = memoryview(part.data).cast("B")
        while len(view):
            view = view[os.pwrite(self.fd, view, end - len(view)) :]
        self._done.append((start, end))


def _choose_buffers(schema: Any, names: list[str]) -> list[int]:
    """Return which buffers of a record batch hold the columns `names`, without the bytes of images."""
    wanted: list[int] = []
    for name in names:
        place = schema.get_field_index(name)
        if place < 0:
            continue  # which the reader reports
        first, kind = _count_buffers(list(schema)[:place]), schema.field(place).type
        numbers = list(range(first, first + _count_buffers([schema.field(place)])))
        if holds_bytes(kind):
            kind = getattr(kind, "storage_type", kind)
            if import_pyarrow().types.is_struct(kind):
                fields = [kind.field(number) for number in range(kind.num_fields)]
                first += 1 + _count_buffers(fields[: kind.get_field_index("bytes")])
            numbers.remove(first + 2)  # after validity and offsets
        wanted += numbers
    return wanted


def _count_buffers(fields: list[Any]) -> int:
    """Return how many buffers a record batch has for fields, by writing an empty one."""
    if not fields:
        return 0
    pyarrow = import_pyarrow()
    empty = pyarrow.record_batch([pyarrow.nulls(0, field.type) for field in fields], schema=pyarrow.schema(fields))
    data = empty.serialize().to_pybytes()
    _, _, buffers = _parse(data[8 : 8 + _number(data[4:8])])
    assert buffers is not None
    return len(buffers)


def _parse(message: bytes) -> tuple[int, int, list[_Buffer] | None]:
    """Return type and bytes of the body of a message, and of a batch its buffers; None if all of it is needed."""
    try:
        root = _Table(message, *struct.unpack_from("<I", message))
        kind, body = root.scalar(1, "<B"), root.scalar(3, "<q")
        if body < 0:
            raise ValueError(f"a message of {body:,} bytes")
        if kind != _RECORDS:
            return kind, body, []
        batch = root.table(2)
        if batch.field(3):
            raise LoaderError("E-UNSUPPORTED", "its record batches are compressed", fix=UNCOMPRESSED)
        if batch.field(4):  # columns with any number of buffers
            return kind, body, None
        count, begin = batch.vector(2)
        return kind, body, [struct.unpack_from("<qq", message, begin + 16 * number) for number in range(count)]
    except struct.error as error:
        raise ValueError(f"metadata that points outside itself: {error}") from error


class _Table:
    """Read fields of a FlatBuffers table (https://flatbuffers.dev/internals)."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        self._size = struct.unpack_from("<H", data, self._fields)[0]

    def field(self, number: int) -> int:
        """Return where a field lies; 0 if it is left out."""
        place = 4 + 2 * number
        offset = struct.unpack_from("<H", self._data, self._fields + place)[0] if place < self._size else 0
        return self._at + offset if offset else 0

    def scalar(self, number: int, form: str) -> int:
        at = self.field(number)
        return int(struct.unpack_from(form, self._data, at)[0]) if at else 0

    def table(self, number: int) -> _Table:
        return _Table(self._data, self._follow(number))

    def vector(self, number: int) -> tuple[int, int]:
        """Return the length of a vector, and where it begins."""
        at = self._follow(number)
        count = struct.unpack_from("<I", self._data, at)[0]
        return min(count, len(self._data) // 16 + 1), at + 4

    def _follow(self, number: int) -> int:
        at = self.field(number)
        return at + int(struct.unpack_from("<I", self._data, at)[0])


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
