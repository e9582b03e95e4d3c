"""Opens Arrow files as a source: the bytes of each image are read from their place in the file."""

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

from penstock.loaders.data.arrow.arrow_columns import (
    AUTO,
    Chosen,
    Label,
    choose_typed,
    read_features,
    refuse_other_columns,
)
from penstock.loaders.data.arrow.arrow_labels import ArrowLabels
from penstock.loaders.data.arrow.arrow_package import Schema, arrow_errors, import_pyarrow
from penstock.loaders.data.arrow.arrow_values import locate_values
from penstock.loaders.data.arrow.image_rows import ImageRows, check_order, no_rows_error
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.files.left_out import warn_of_left_out
from penstock.loaders.data.indexes.open_samples import load_or_make
from penstock.loaders.data.labels.collect_texts import NO_TEXTS, RAISE, TextOptions
from penstock.loaders.data.labels.labelled import serve_labels
from penstock.loaders.data.labels.stored_labels import Labels
from penstock.loaders.data.remote.path_or_url import folder_of
from penstock.loaders.data.remote.remote_source import check_reading
from penstock.loaders.data.remote.whole_files import copy_urls
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.samples.version import Container
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import only_whole
from penstock.loaders.system.file_read import open_regular, read_error
from penstock.pipelines.errors import LoaderError, printable

FORMAT = 4  # the rules by which rows are ordered, skipped and labelled
_MAGIC = b"ARROW1"
_UNCOMPRESSED = (
    "write it uncompressed: pyarrow.ipc.new_file(path, schema), write_feather(..., compression='uncompressed'), or "
    "datasets' save_to_disk"
)
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowFile:
    """A mapped file of Arrow's IPC format, file or stream; its record batches are read without copying.

    Attributes:
        container: name, size and time of the file.
        schema: its pyarrow schema.
        address: address of the mapping.
    """

    def __init__(self, path: bytes) -> None:
        try:
            fd = open_regular(path)
        except OSError as error:
            raise read_error(error, path) from error
        try:
            self.container = Container.of_file(path, os.fstat(fd))
            if not self.container.size:
                raise LoaderError("E-EMPTY", "the Arrow file is empty", path=path)
            self._memory = import_pyarrow().py_buffer(mmap.mmap(fd, self.container.size, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
        self.address = self._memory.address
        self._is_stream = self._memory[: len(_MAGIC)].to_pybytes() != _MAGIC
        with arrow_errors(path, "E-FORMAT", "neither an Arrow file nor an Arrow stream"):
            self.schema: Schema = self._open(import_pyarrow().BufferReader(self._memory)).schema

    def chunks(self, names: list[str]) -> Iterator[list[Any]]:
        """Yield the columns `names` of each record batch. Raises LoaderError E-FORMAT, E-CORRUPT, E-TRUNC."""
        pyarrow, path = import_pyarrow(), self.container.name
        fields = [self.schema.get_field_index(name) for name in names]
        if -1 in fields:
            cause = f"it has no column {names[fields.index(-1)]!r}, or more than one, unlike the file before it"
            raise LoaderError("E-FORMAT", cause, fix="pass files of one data set", path=path)
        file = pyarrow.BufferReader(self._memory)
        with arrow_errors(path):
            # Not included_fields of IpcReadOptions: with it, the file reader copies the data.
            reader = self._open(file)
            count = None if self._is_stream else reader.num_record_batches
            for batch in reader if count is None else map(reader.get_batch, range(count)):
                yield [batch.column(field) for field in fields]
        if not self._is_stream:
            return
        # Arrow accepts the end of the file as the end of the stream, but a complete stream has an end mark.
        end = file.tell()
        if self._memory[max(end - len(_END_OF_STREAM), 0) : end].to_pybytes() != _END_OF_STREAM:
            cause = "the stream has no end mark: it is truncated, or its writer was not closed"
            raise LoaderError("E-TRUNC", cause, fix="write or download the file again", path=path)

    def _open(self, file: Any) -> Any:
        ipc = import_pyarrow().ipc
        return (ipc.open_stream if self._is_stream else ipc.open_file)(file)


@dataclass(frozen=True, kw_only=True)
class ArrowFiles:
    """Arrow files that are one data set.

    Attributes:
        paths: absolute paths, in the order of the rows.
        image, label: the options of these names.
        info: text of the data set's dataset_info.json, if it has one.
        classes, missing_labels, text: the options of these names.
        indices: paths of Arrow files with the numbers of the rows to serve, in order; () for all rows.
    """

    paths: tuple[bytes, ...]
    image: str | None = None
    label: Label = AUTO
    info: bytes = b""
    classes: object = None
    missing_labels: str = RAISE
    indices: tuple[bytes, ...] = ()
    text: TextOptions = NO_TEXTS

    @property
    def identity(self) -> str:
        """Hex digest of all attributes."""
        options = (self.image, self.label, self.info, self.classes, self.missing_labels, *self.text.identity)
        parts = (FORMAT, *options, *map(os.path.realpath, self.paths), b"", *map(os.path.realpath, self.indices))
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @property
    def has_list(self) -> bool:
        """Whether the classes are listed, by the user or in the files."""
        return self.classes is not None or bool(self._choose(ArrowFile(self.paths[0]).schema).classes)

    def _choose(self, schema: Schema) -> Chosen:
        features = read_features(schema, self.info)
        return choose_typed(schema, features, self.image, self.label, text=self.text)

    def index(self) -> tuple[SamplesWriter, Labels]:
        """Locate all images; return the index to save, and labels that are not class numbers.

        Raises LoaderError for damaged, missing or compressed files; ValueError.
        """
        rows, first = ImageRows(), ArrowFile(self.paths[0])
        chunks: list[_Chunks] = []
        columns = self._choose(first.schema)
        labels = ArrowLabels(columns, self.classes, self.missing_labels, self.text)
        for path in self.paths:
            file = first if path == self.paths[0] else ArrowFile(path)
            if not self.info:  # it would describe all files
                refuse_other_columns(columns, file.schema, path)
            with arrow_errors(path):
                found = _locate_rows(file, columns.image, rows, labels)
                if self.indices:
                    chunks.append(found)
                else:
                    labels.add(found[1], path)
            if not found[0] and not self.info:  # save_to_disk writes such files if there are many shards
                raise no_rows_error(path)
        order = self._read_indices(rows) if self.indices else None
        if order is not None:
            check_order(order, sum(count for count, _ in chunks))
            of_files = ([chunk for _, own in chunks for chunk in own[n].chunks] for n in range(len(labels.columns)))
            labels.add(list(map(import_pyarrow().chunked_array, of_files)), order=order)
        return rows.finish("Arrow files", labels.rows, order)

    def _read_indices(self, rows: ImageRows) -> npt.NDArray[np.int64]:
        parts = [np.zeros(0, np.int64)]
        for path in self.indices:
            file = ArrowFile(path)
            rows.add_container(file.container)  # so that a change of the file is detected
            with arrow_errors(path):
                parts += [column.to_numpy().astype(np.int64) for (column,) in file.chunks(file.schema.names[:1])]
        return np.concatenate(parts)


_Chunks = tuple[int, list[Any]]  # number of rows, a chunked array for each label column


def _locate_rows(file: ArrowFile, image: str, rows: ImageRows, labels: ArrowLabels) -> _Chunks:
    """Add the images of a file; return its labels."""
    pyarrow, path = import_pyarrow(), file.container.name
    container, first_row = rows.add_container(file.container), 0
    label_chunks: list[list[Any]] = [[] for _ in labels.columns]
    for column, *labelled in file.chunks([image, *labels.columns]):
        values = locate_values(column)
        offset = 0 if values.buffer is None else values.buffer.address - file.address
        if values.sizes.any() and not 0 <= offset <= file.container.size - values.buffer.size:
            raise LoaderError("E-UNSUPPORTED", "its record batches are compressed", fix=_UNCOMPRESSED, path=path)
        rows.add(values, container, offset, first_row, folder_of(path))
        first_row += len(values.sizes)
        for chunks, chunk in zip(label_chunks, labelled, strict=True):
            chunks.append(chunk)
    kinds = [file.schema.field(name).type for name in labels.columns]
    return first_row, list(map(pyarrow.chunked_array, label_chunks, kinds))


def open_arrow_files(
    paths: list[bytes],
    *,
    image: str | None = None,
    label: Label = AUTO,
    classes: object = None,
    missing_labels: str = RAISE,
    text: str | None = None,
    missing_text: str = RAISE,
    **reading: Any,
) -> Source:
    """Open Arrow files as one source, in the order of `paths`; samples are the rows, file by file.

    paths: paths of files, or URLs, which are copied whole to `local_cache`. image: the column of images: bytes, Hugging
    Face's struct of bytes and path, or paths of files (relative to the folder of the Arrow file). label: the column of
    class numbers or names, of floats, or of lists of numbers or classes, which are served as float32; text as
    open_tables reads it; a list, or a dict by name, of several columns; None for images of one class. classes,
    missing_labels: as in open_tables. text: the column of texts, strings or lists of strings; no label is needed then.
    missing_text: as in open_tables. reading: fields of RemoteOptions. Rows without an image are left out with a
    warning. Raises ValueError for columns, LoaderError.
    """
    texts = TextOptions.checked(text, missing_text)
    chosen: dict[str, Any] = {"image": image, "label": label, "classes": classes, "missing_labels": missing_labels}
    options = check_reading(paths, **reading)
    here = copy_urls(paths, options)
    files = ArrowFiles(paths=tuple(map(os.path.abspath, here)), **chosen, text=texts)
    again: dict[str, Any] = {**chosen, "text": text, "missing_text": missing_text, **reading}
    reopen = functools.partial(open_arrow_files, paths, **again)
    return open_described(files, reopen, options.max_file_bytes)


def open_described(files: ArrowFiles, reopen: Callable[[], Source], max_file_bytes: int) -> Source:
    """Open `files` by their saved index if they are unchanged, otherwise by a new index."""
    identity = files.identity
    name = identity.encode() + b".index"
    samples, labels = load_or_make(name, identity, files.index)
    where = printable(files.paths[0]) + (f" and {len(files.paths) - 1:,} more" if len(files.paths) > 1 else "")
    warn_of_left_out(samples.header.skipped, samples.header.examples, where)
    images = IndexedSource(samples, max_file_bytes, lambda rescan: only_whole(reopen()))
    return serve_labels(images, labels, has_list=files.has_list)
