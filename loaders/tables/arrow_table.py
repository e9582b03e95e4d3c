"""Reads the rows of Parquet tables whose images are paths, and columns of files of Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.loaders.remote.object_store import is_url
from penstock.loaders.remote.places import read_whole
from penstock.loaders.tables.row_packer import NO_LABEL
from penstock.loaders.tables.table_columns import choose_columns
from penstock.loaders.tables.text_table import Row
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.targets import parts_of

PARQUET_SUFFIXES = (".parquet",)
_BATCH_ROWS = 1 << 14


def read_parquet(path: bytes, image: Any, label: Any) -> Iterator[Row]:
    """Yield the rows of a Parquet file. Raises LoaderError E-FORMAT, E-DEPENDENCY; ValueError for other columns."""
    table = open_parquet(path)
    schema = table.schema_arrow
    image, label = choose_columns(schema.names, image, label, printable(path))
    if not _is_text(schema.field(image).type):
        kind = schema.field(image).type
        raise ValueError(f"column {image!r} of {printable(path)} must hold paths (strings), got {kind}")
    number = 0
    labels = [] if label is None else list(parts_of(label).values())
    for batch in table.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys([image, *labels]))):
        paths = batch.column(image).to_pylist()
        found = [batch.column(name).to_pylist() for name in labels]
        for path_of_row, *own in zip(paths, *found, strict=True):
            number += 1
            if isinstance(label, dict):
                yield number, path_of_row, dict(zip(label, own, strict=True))
            else:
                yield number, path_of_row, own[0] if own else NO_LABEL


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def open_parquet(path: bytes) -> Any:
    """Open a file or URL with pyarrow. Raises LoaderError E-FORMAT, E-DEPENDENCY."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise LoaderError("E-DEPENDENCY", f"Parquet needs pyarrow ({error})", fix="pip install pyarrow") from error
    try:
        place = pa.BufferReader(read_whole(path)) if is_url(path) else path.decode("utf-8", "surrogateescape")
        return parquet.ParquetFile(place)
    except pa.ArrowInvalid as error:
        raise LoaderError("E-FORMAT", f"not a Parquet file: {error}", fix="write the table again", path=path) from error


def read_arrow(path: bytes) -> Any:
    """Return the table of a file or stream of Arrow. Raises LoaderError E-FORMAT."""
    import pyarrow as pa

    try:
        with pa.memory_map(path.decode("utf-8", "surrogateescape")) as file:
            try:
                return pa.ipc.open_file(file).read_all()
            except pa.ArrowInvalid:
                file.seek(0)
                return pa.ipc.open_stream(file).read_all()
    except pa.ArrowInvalid as error:
        raise LoaderError(
            "E-FORMAT", f"not a file of Arrow: {error}", fix="write the table again", path=path
        ) from error
