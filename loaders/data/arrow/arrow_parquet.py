"""Reads Parquet files: their row groups, their labels, and the images of one group."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.arrow.arrow_columns import choose_typed, holds_bytes, read_features
from penstock.loaders.data.arrow.arrow_package import Schema, arrow_errors, import_pyarrow
from penstock.loaders.data.arrow.arrow_values import Values, locate_values
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.samples.version import Container
from penstock.loaders.system.file_read import open_regular, read_error
from penstock.pipelines.errors import LoaderError

ReadAt = Callable[[int, int], Any]  # (start, bytes) -> an object with the buffer protocol


class UrlFile:
    """A file object for pyarrow that reads an object by ranges."""

    def __init__(self, container: Container, read_at: ReadAt) -> None:
        self._size, self._read_at = container.size, read_at
        self._at, self.closed = 0, False

    def read(self, count: int = -1) -> bytes:
        """Return up to `count` bytes, or all remaining bytes."""
        left = max(0, self._size - self._at)
        count = left if count < 0 else min(count, left)
        data = bytes(self._read_at(self._at, count)) if count else b""
        self._at += count
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to `offset`."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._at

    def close(self) -> None:
        """Close the file."""
        self.closed = True


class Footer(NamedTuple):
    """The footer of a Parquet file.

    Attributes:
        container: name, size and time of the file.
        schema: its pyarrow schema.
        group_rows: number of rows of each row group, int64.
        group_bytes: uncompressed bytes of each row group, int64.
        metadata: pyarrow's metadata of the file.
    """

    container: Container
    schema: Schema
    group_rows: npt.NDArray[np.int64]
    group_bytes: npt.NDArray[np.int64]
    metadata: Any


class ImageGroup(NamedTuple):
    """The images of a row group.

    Attributes:
        chunks: their places in memory.
        ends: number of the row after each chunk.
        num_bytes: their bytes in memory.
    """

    chunks: tuple[Values, ...]
    ends: npt.NDArray[np.int64]
    num_bytes: int

    def locate(self, row: int) -> tuple[int, int]:
        """Return address and size of an image; 0 and 0 for a row without one."""
        values, row = self.find(row)
        there = values.buffer is not None and values.present[row]
        return (values.buffer.address + int(values.starts[row]), int(values.sizes[row])) if there else (0, 0)

    def find(self, row: int) -> tuple[Values, int]:
        """Return the chunk that contains row `row` of the group, and the row's number in it."""
        chunk = int(np.searchsorted(self.ends, row, "right"))
        values = self.chunks[chunk]
        return values, row - int(self.ends[chunk]) + len(values.sizes)


def has_image_bytes(path: bytes, image: str | None = None, access: Access = DEFAULT) -> bool:
    """Return whether a Parquet file contains its images, and not paths of image files.

    image: the option of this name. False for a table without an image column. Raises LoaderError for a file that cannot
    be read or is not Parquet.
    """
    schema = read_schema(path, access)
    if image is not None and image not in schema.names:
        return True  # ParquetSource lists the columns
    try:
        chosen = choose_typed(schema, read_features(schema), image, None)
    except ValueError:
        return image is None and any(holds_bytes(field.type) for field in schema)
    return holds_bytes(schema.field(chosen.image).type)


def read_footer(path: bytes, access: Access = DEFAULT) -> Footer:
    """Return the footer of a file.

    Does not read the metadata of columns: if damaged, they crash pyarrow 26.
    """
    with open_file(path, access=access) as (file, container):
        about = file.metadata
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        rows = np.array([group.num_rows for group in groups], np.int64)
        sizes = np.array([group.total_byte_size for group in groups], np.int64)
        if (rows < 0).any() or (sizes < 0).any() or rows.sum() != about.num_rows:
            raise ValueError("the footer contradicts itself")
        return Footer(container, file.schema_arrow, rows, sizes, about)


def read_schema(path: bytes, access: Access = DEFAULT) -> Schema:
    """Return the pyarrow schema of a file."""
    with open_file(path, access=access) as (file, _):
        schema: Schema = file.schema_arrow
        return schema


def read_column(footer: Footer, name: str, access: Access = DEFAULT) -> Any:
    """Return a whole column as a pyarrow chunked array."""
    with open_file(footer.container.name, footer.container, footer.metadata, access=access) as (file, _):
        column = file.read(columns=[name], use_threads=False).column(name)
        if len(column) != footer.group_rows.sum():
            raise ValueError("a column has more or fewer values than rows")
        return column


def read_group(
    container: Container, group: int, image: str, read_at: ReadAt | None = None, access: Access = DEFAULT
) -> ImageGroup:
    """Decode the images of one row group. Raises LoaderError E-CHANGED if the file has changed.

    read_at: function of (start, count) that reads bytes of a file at a URL; the default makes its own requests.
    """
    with open_file(container.name, container, _read_metadata(container, access), read_at, access) as (file, _):
        column = file.read_row_group(group, columns=[image], use_threads=False).column(image)
        chunks = tuple(locate_values(chunk) for chunk in column.chunks)
        ends = np.cumsum([len(values.sizes) for values in chunks], dtype=np.int64)
        if len(column) != file.metadata.row_group(group).num_rows:
            raise ValueError("a row group has more or fewer images than rows")
        return ImageGroup(chunks, ends, column.get_total_buffer_size())


@functools.lru_cache(maxsize=16)  # parsing the metadata of 10,000 groups takes 70 ms
def _read_metadata(container: Container, access: Access) -> Any:
    with open_file(container.name, container, access=access) as (file, _):
        return file.metadata


@contextlib.contextmanager
def open_file(
    path: bytes,
    expected: Container | None = None,
    metadata: Any = None,
    read_at: ReadAt | None = None,
    access: Access = DEFAULT,
) -> Iterator[tuple[Any, Container]]:
    """Open a Parquet file with pyarrow. Raises LoaderError, E-CHANGED unless it is `expected` before and after."""
    pyarrow = import_pyarrow()
    if is_url(path):  # the version is compared with each answer
        store, url = ObjectStore(access), path.decode()
        container = expected or Container(path, *store.stat(url))
        version = container.version
        remote = UrlFile(container, read_at or (lambda start, count: store.read(url, start, count, version).data))
        with arrow_errors(path, "E-FORMAT", "not a Parquet file"):
            file = pyarrow.parquet.ParquetFile(
                pyarrow.PythonFile(remote, "r"), metadata=metadata, pre_buffer=True, page_checksum_verification=True
            )
        with file, arrow_errors(path):
            yield file, container
        return
    try:
        fd = open_regular(path)
    except OSError as error:
        raise read_error(error, path) from error
    try:
        container = Container.of_file(path, os.fstat(fd))
        _refuse_changed(container, expected)
        try:
            with arrow_errors(path, "E-FORMAT", "not a Parquet file"):
                # By the descriptor, so that the same file is read that was compared.
                file = pyarrow.parquet.ParquetFile(
                    f"/proc/self/fd/{fd}", metadata=metadata, page_checksum_verification=True
                )
            with file, arrow_errors(path):
                yield file, container
        except LoaderError:
            _refuse_changed(Container.of_file(path, os.fstat(fd)), expected)  # a change explains invalid content
            raise
        _refuse_changed(Container.of_file(path, os.fstat(fd)), expected)
    finally:
        os.close(fd)


def _refuse_changed(found: Container, expected: Container | None) -> None:
    if expected is None or (found.size, found.version.number) == (expected.size, expected.version.number):
        return
    cause = "modified since it was opened"
    if found.size != expected.size:
        cause = f"{found.size:,} bytes now, {expected.size:,} when it was opened"
    raise LoaderError("E-CHANGED", cause, fix="create the loader again", path=found.name)
