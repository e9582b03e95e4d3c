"""Serves Arrow files as a source: the bytes of each image are read from their place in the file."""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.arrow.arrow_columns import AUTO, choose_columns, read_features
from penstock.loaders.arrow.arrow_labels import LabelCollector
from penstock.loaders.arrow.arrow_package import arrow_errors, import_pyarrow
from penstock.loaders.arrow.arrow_values import locate_values
from penstock.loaders.arrow.image_rows import ImageRows
from penstock.loaders.sources.image_files import MAX_FILE_BYTES
from penstock.loaders.sources.range_index import Container, RangeIndex, RangeTable
from penstock.loaders.sources.range_source import RangeSource, are_unchanged
from penstock.loaders.system.file_read import mtime_ns, open_regular, read_error
from penstock.loaders.system.saved_columns import load_saved, save_index
from penstock.pipelines.checked import checked_int
from penstock.pipelines.errors import LoaderError

FORMAT = 1  # the rules by which rows are ordered, skipped and labelled
_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_UNCOMPRESSED = (
    "write it uncompressed: pyarrow.ipc.new_file(path, schema), write_feather(..., compression='uncompressed'), or "
    "datasets' save_to_disk"
)


class ArrowFile:
    """Map a file of Arrow's IPC format, file or stream, and read its record batches without copying.

    Attributes:
        container: name, size and time of the file.
        schema: its pyarrow schema.
        address: address of the mapping.
    """

    def __init__(self, path: bytes) -> None:
        pyarrow = import_pyarrow()
        try:
            fd = open_regular(path)
        except OSError as error:
            raise read_error(error, path) from error
        try:
            status = os.fstat(fd)
            self.container = Container(path, status.st_size, mtime_ns(status))
            if not status.st_size:
                raise LoaderError("E-EMPTY", "an Arrow file without any bytes", path=path)
            self._memory = pyarrow.py_buffer(mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
        self.address = self._memory.address
        self._is_stream = self._memory[: len(_FILE_MAGIC)].to_pybytes() != _FILE_MAGIC
        with arrow_errors(path, "E-FORMAT", "neither an Arrow file nor an Arrow stream"):
            self.schema = self._open(pyarrow.BufferReader(self._memory)).schema

    def chunks(self, names: list[str]) -> Iterator[list[Any]]:
        """Yield the columns `names` of each record batch. Raises LoaderError E-FORMAT, E-CORRUPT, E-TRUNC."""
        pyarrow, path = import_pyarrow(), self.container.name
        fields = [self.schema.get_field_index(name) for name in names]
        if -1 in fields:
            cause = f"it has no column {names[fields.index(-1)]!r}, or more than one, unlike the file before it"
            raise LoaderError("E-FORMAT", cause, fix="pass files of one data set", path=path)
        file = pyarrow.BufferReader(self._memory)
        with arrow_errors(path):
            # Not included_fields of IpcReadOptions: with it the reader of files copies what it reads.
            reader = self._open(file)
            count = None if self._is_stream else reader.num_record_batches
            for batch in reader if count is None else map(reader.get_batch, range(count)):
                yield [batch.column(field) for field in fields]
        if not self._is_stream:
            return
        # Arrow takes the end of the file for the end of the stream, which writers mark when they are done.
        end = file.tell()
        if self._memory[max(end - len(_END_OF_STREAM), 0) : end].to_pybytes() != _END_OF_STREAM:
            cause = "the stream has no end mark: it was cut off, or its writer was not closed"
            raise LoaderError("E-TRUNC", cause, fix="write or download the file again", path=path)

    def _open(self, file: Any) -> Any:
        ipc = import_pyarrow().ipc
        return (ipc.open_stream if self._is_stream else ipc.open_file)(file)


@dataclass(frozen=True, kw_only=True)
class ArrowFiles:
    """Describe Arrow files that are one data set.

    Attributes:
        paths: absolute, in the order of the rows.
        image, label: the options of that name.
        info: text of the data set's dataset_info.json, if it has one.
        indices: paths of Arrow files with the numbers of the rows that are served, in their order; () for all rows.
    """

    paths: tuple[bytes, ...]
    image: str | None = None
    label: str | None = AUTO
    info: bytes = b""
    indices: tuple[bytes, ...] = ()

    @property
    def identity(self) -> str:
        """Hex digest of all this."""
        parts = (FORMAT, self.image, self.label, self.info, *map(os.path.realpath, (*self.paths, b"", *self.indices)))
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def locate(self) -> RangeTable:
        """Locate all images. Raises LoaderError for files that are damaged, missing or compressed; ValueError."""
        rows, columns = ImageRows(), None
        labels = LabelCollector()
        for path in self.paths:
            file = ArrowFile(path)
            if columns is None:
                features = read_features(file.schema, self.info)
                columns = choose_columns(file.schema, features, self.image, self.label)
                labels = LabelCollector(columns.classes)
            with arrow_errors(path):
                _locate_rows(file, columns.image, columns.label, rows, labels)
        order = self._read_indices(rows) if self.indices else None
        return rows.finish("Arrow files", *labels.finish(), order, self.identity)

    def _read_indices(self, rows: ImageRows) -> npt.NDArray[np.int64]:
        parts = [np.zeros(0, np.int64)]
        for path in self.indices:
            file = ArrowFile(path)
            rows.add_container(file.container)  # so that a change of it is noticed
            with arrow_errors(path):
                parts += [column.to_numpy().astype(np.int64) for (column,) in file.chunks(file.schema.names[:1])]
        return np.concatenate(parts)


def _locate_rows(file: ArrowFile, image: str, label: str | None, rows: ImageRows, labels: LabelCollector) -> None:
    pyarrow, path = import_pyarrow(), file.container.name
    container, first_row, label_chunks = rows.add_container(file.container), 0, []
    for column, *labelled in file.chunks([image] if label is None else [image, label]):
        values = locate_values(column)
        offset = 0 if values.buffer is None else values.buffer.address - file.address
        if values.sizes.any() and not 0 <= offset <= file.container.size - values.buffer.size:
            raise LoaderError("E-UNSUPPORTED", "its record batches are compressed", fix=_UNCOMPRESSED, path=path)
        rows.add(values, container, offset, first_row, os.path.dirname(path))
        first_row += len(values.sizes)
        label_chunks += labelled
    if label is None:
        labels.add_unlabelled(first_row)
    else:
        labels.add(pyarrow.chunked_array(label_chunks, file.schema.field(label).type))


def open_arrow_files(
    paths: list[bytes], *, image: str | None = None, label: str | None = AUTO, max_file_bytes: int = MAX_FILE_BYTES
) -> RangeSource:
    """Open Arrow files as one source, in the order of `paths`; samples are the rows, file by file.

    image: the column of images: bytes, Hugging Face's struct of bytes and path, or paths of files (relative ones to the
    folder of the Arrow file). label: the column of class numbers or names; None for images of one class. Rows without
    an image or label (null, or a negative number) are skipped and counted. Raises ValueError for columns, LoaderError.
    """
    files = ArrowFiles(paths=tuple(map(os.path.abspath, paths)), image=image, label=label)
    reopen = functools.partial(open_arrow_files, paths, image=image, label=label, max_file_bytes=max_file_bytes)
    return open_described(files, reopen, max_file_bytes)


def open_described(files: ArrowFiles, reopen: Callable[[], RangeSource], max_file_bytes: int) -> RangeSource:
    """Open `files` by their saved index, if there is one and they are unchanged, or else by a new one."""
    checked_int("max_file_bytes", max_file_bytes, 1)
    identity = files.identity
    name = identity.encode() + b".index"
    index = load_saved(name, RangeIndex)
    if index is None or index.header.made_by != identity or not are_unchanged(index):
        index = save_index(name, files.locate().write, RangeIndex)
    return RangeSource(index, reopen, max_file_bytes)
