"""Opens a Hugging Face `datasets.Dataset` as a source, through its Arrow table."""

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
from penstock.loaders.data.labels.collect_texts import RAISE, TextOptions
from penstock.loaders.data.labels.labelled import serve_labels
from penstock.loaders.data.labels.stored_labels import save_with_labels
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.system.machine import ensure_memory
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_int, shown

_KINDS = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")


def is_dataset(spec: object) -> bool:
    """Return whether `spec` is a data set of the package `datasets`, or a dict of them, without importing it."""
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
    text: str | None = None,
    missing_text: str = RAISE,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Source:
    """Open a `datasets.Dataset`; samples are numbered like its rows, also after select, shuffle or concatenation.

    Images are read from the Arrow files mapped by the data set. Images in memory are copied once, to memory shared by
    worker processes. Formats of the data set ("torch", "numpy") are ignored. split: the split of a DatasetDict. image,
    label, classes, missing_labels, text, missing_text: as in open_arrow_files. Raises ValueError for columns, splits,
    iterable data sets and data sets with a transform; LoaderError E-MEM, and those of the index.
    """
    kind = _kind_of(dataset) or ""
    if kind.startswith("Iterable"):
        raise ValueError(
            f"rows of an {kind} cannot be read by number: load it without streaming=True, or save it with "
            "save_to_disk; for streams use penstock.loaders.DataLoader"
        )
    if kind == "DatasetDict":
        if split not in dataset:
            raise ValueError(f"split must be one of {', '.join(map(str, dataset))}, got {shown(split)}")
        dataset = dataset[split]
    elif split is not None and str(dataset.split) != split:
        raise ValueError(f"split must be the data set's split, {str(dataset.split)!r}, got {shown(split)}")
    checked_int("max_file_bytes", max_file_bytes, 1)
    refuse_transform(dataset)
    table = dataset.data
    features = dataset.features.to_dict() or read_features(table.schema)
    texts = TextOptions.checked(text, missing_text)
    columns = choose_typed(table.schema, features, image, label, text=texts)
    rows, labels = ImageRows(), ArrowLabels(columns, classes, missing_labels, texts)
    indices = dataset._indices  # the rows that it selects; there is no public name for this
    order = None if indices is None else indices.column(0).to_numpy().astype(np.int64)
    held = _locate_chunks(table.column(columns.image).chunks, rows)
    labels.add(list(map(table.column, labels.columns)), order=order)
    kind = "Arrow files" if held is None else "Arrow files or parts of memory"
    samples, kept = save_with_labels(None, *rows.finish(kind, labels.rows, order))
    warn_of_left_out(samples.header.skipped, samples.header.examples, "the data set")
    reopen = functools.partial(_refuse_to_reopen, held)  # keeps the file alive in this process
    has_list = classes is not None or bool(columns.classes)
    return serve_labels(IndexedSource(samples, max_file_bytes, reopen), kept, has_list=has_list)


def refuse_transform(dataset: object) -> None:
    """Raise ValueError for a data set with set_transform or with_transform: the function would not be called."""
    about = getattr(dataset, "format", None)
    if isinstance(about, dict) and about.get("type") == "custom":
        function = about.get("format_kwargs", {}).get("transform")
        name = getattr(function, "__qualname__", None) or type(function).__name__
        raise ValueError(
            f"the data set has the transform {name} (set_transform, with_transform), but rows are read without it: "
            "pass a function of one image as transform=, and dataset.with_format(None) as the data"
        )


def _locate_chunks(chunks: list[Any], rows: ImageRows) -> MemoryFile | None:
    """Add the chunks of the image column; return the file with copies of images that were in memory, if any."""
    memory = MappedMemory()
    located = [locate_values(chunk) for chunk in chunks]
    # An empty buffer may be anywhere, even in a library.
    mapped = [memory.find(v.buffer.address, v.buffer.size) if v.sizes.any() else None for v in located]
    num_bytes = sum(int(v.sizes.sum()) for v, mapping in zip(located, mapped, strict=True) if mapping is None)
    held, number, first_row = None, 0, 0
    if num_bytes:
        ensure_memory(num_bytes, "a copy of the data set's images shared by workers", "E-MEM")
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
