"""Serves a `datasets.Dataset` of Hugging Face as a source, by the Arrow table that it holds."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from penstock.loaders.data.arrow.arrow_columns import AUTO, Label, choose_typed, read_features
from penstock.loaders.data.arrow.arrow_labels import ArrowLabels
from penstock.loaders.data.arrow.arrow_values import Values, locate_values
from penstock.loaders.data.arrow.image_rows import ImageRows
from penstock.loaders.data.arrow.mapped_memory import MappedMemory, MemoryFile
from penstock.loaders.data.files.indexed_source import MAX_FILE_BYTES, IndexedSource
from penstock.loaders.data.files.left_out import warn_of_left_out
from penstock.loaders.data.labels.label_rows import RAISE
from penstock.loaders.data.labels.labelled import serve_labels
from penstock.loaders.data.labels.stored_labels import save_with_labels
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.system.machine import ensure_memory
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_int, shown

_KINDS = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")


def is_dataset(spec: object) -> bool:
    """Return whether `spec` is a data set of the package `datasets`, or a dict of them; it is not imported for this."""
    return _kind_of(spec) is not None


def _kind_of(spec: object) -> str | None:
    names = (c.__name__ for c in type(spec).__mro__ if c.__module__.partition(".")[0] == "datasets")
    return next((name for name in names if name in _KINDS), None)


def open_dataset(
    dataset: Any,
    *,
    split: str | None = None,
    image: str | None = None,
    label: Label = AUTO,
    classes: object = None,
    missing_labels: str = RAISE,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Source:
    """Open a `datasets.Dataset`; samples are numbered as its rows, whatever was selected, shuffled or concatenated.

    Images are read from the Arrow files that the data set has mapped. Those in memory are copied once, to memory that
    worker processes share. Formats of the data set ("torch", "numpy") do not matter. split: which one, of a
    DatasetDict. image, label, classes, missing_labels: as open_arrow_files takes them. Raises ValueError for columns,
    splits, iterable data sets and data sets with a transform; LoaderError E-MEM, and those of the index.
    """
    kind = _kind_of(dataset) or ""
    if kind.startswith("Iterable"):
        raise ValueError(
            f"an {kind} has no rows that can be read by number: load it without streaming=True, or save it with "
            "save_to_disk; for streams use penstock.loaders.DataLoader"
        )
    if kind == "DatasetDict":
        if split not in dataset:
            raise ValueError(f"split must be one of {', '.join(map(str, dataset))}, got {shown(split)}")
        dataset = dataset[split]
    elif split is not None and str(dataset.split) != split:
        raise ValueError(f"split must be that of the data set, {str(dataset.split)!r}, got {shown(split)}")
    checked_int("max_file_bytes", max_file_bytes, 1)
    refuse_transform(dataset)
    table = dataset.data
    features = dataset.features.to_dict() or read_features(table.schema)
    columns = choose_typed(table.schema, features, image, label)
    rows, labels = ImageRows(), ArrowLabels(columns, classes, missing_labels)
    indices = dataset._indices  # the rows that it shows; there is no public name for it
    order = None if indices is None else indices.column(0).to_numpy().astype(np.int64)
    held = _locate_chunks(table.column(columns.image).chunks, rows)
    labels.add(list(map(table.column, labels.columns)), order=order)
    kind = "Arrow files" if held is None else "Arrow files or parts of memory"
    samples, kept = save_with_labels(None, *rows.finish(kind, labels.rows, order))
    warn_of_left_out(samples.header.skipped, samples.header.examples, "the data set")
    reopen = functools.partial(_refuse_to_reopen, held)  # which keeps the file alive here
    has_list = classes is not None or bool(columns.classes)
    return serve_labels(IndexedSource(samples, max_file_bytes, reopen), kept, has_list=has_list)


def refuse_transform(dataset: object) -> None:
    """Raise ValueError for a data set that set_transform or with_transform gave a function: it would not be called."""
    about = getattr(dataset, "format", None)
    if isinstance(about, dict) and about.get("type") == "custom":
        function = about.get("format_kwargs", {}).get("transform")
        name = getattr(function, "__qualname__", None) or type(function).__name__
        raise ValueError(
            f"the data set has the transform {name} (set_transform, with_transform), and its rows are read without it: "
            "pass a function of one image as transform=, and the data as dataset.with_format(None)"
        )


def _locate_chunks(chunks: list[Any], rows: ImageRows) -> MemoryFile | None:
    """Add the chunks of the column of images; return the file that holds what lay in memory, if anything did."""
    memory = MappedMemory()
    located = [locate_values(chunk) for chunk in chunks]
    # An empty buffer may lie anywhere, even in a library.
    mapped = [memory.find(v.buffer.address, v.buffer.size) if v.sizes.any() else None for v in located]
    num_bytes = sum(int(v.sizes.sum()) for v, mapping in zip(located, mapped, strict=True) if mapping is None)
    held, number, first_row = None, 0, 0
    if num_bytes:
        ensure_memory(num_bytes, "a copy of the data set's images, which workers share", "E-MEM")
        held = MemoryFile()
        offsets = [held.append(_used_part(v)) if m is None else 0 for v, m in zip(located, mapped, strict=True)]
        number = rows.add_container(held.container())
    for chunk, (values, mapping) in enumerate(zip(located, mapped, strict=True)):
        if mapping is not None:
            offset = mapping.offset + values.buffer.address - mapping.begin
            rows.add(values, rows.add_container(mapping.container), offset, first_row, b"")
        else:
            offset = offsets[chunk] - _first_byte(values) if num_bytes else 0
            rows.add(values, number, offset, first_row, b"")
        first_row += len(values.sizes)
    return held


def _first_byte(values: Values) -> int:
    return int(values.starts[0]) if len(values.starts) else 0


def _used_part(values: Values) -> memoryview:
    """Return the part of a chunk's buffer that its rows use."""
    begin = _first_byte(values)
    return memoryview(values.buffer or b"")[begin : begin + int(values.sizes.sum())]


def _refuse_to_reopen(_held: MemoryFile | None, rescan: bool) -> IndexedSource:
    raise LoaderError("E-CHANGED", "files of the data set have changed", fix="load the data set again")
