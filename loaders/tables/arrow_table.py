"""Reads the rows of Parquet tables whose images are paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.loaders.arrow.arrow_columns import holds_paths
from penstock.loaders.arrow.arrow_package import import_pyarrow
from penstock.loaders.arrow.arrow_parquet import open_file, read_schema
from penstock.loaders.tables.row_packer import NO_LABEL
from penstock.loaders.tables.table_columns import choose_columns
from penstock.loaders.tables.text_table import Row
from penstock.pipelines.errors import printable
from penstock.pipelines.targets import parts_of

PARQUET_SUFFIXES = (".parquet",)
_BATCH_ROWS = 1 << 14


def read_parquet(path: bytes, image: Any, label: Any) -> Iterator[Row]:
    """Yield the rows of a Parquet file. Raises LoaderError E-FORMAT, E-DEPENDENCY; ValueError for other columns."""
    schema = read_schema(path)
    image, label = choose_columns(schema.names, image, label, printable(path))
    kind = schema.field(image).type
    if not holds_paths(kind.value_type if import_pyarrow().types.is_dictionary(kind) else kind):
        raise ValueError(f"column {image!r} of {printable(path)} must hold paths (strings), got {kind}")
    number = 0
    labels = [] if label is None else list(parts_of(label).values())
    with open_file(path) as (table, _):
        for batch in table.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys([image, *labels]))):
            paths = batch.column(image).to_pylist()
            found = [batch.column(name).to_pylist() for name in labels]
            for path_of_row, *own in zip(paths, *found, strict=True):
                number += 1
                if isinstance(label, dict):
                    yield number, path_of_row, dict(zip(label, own, strict=True))
                else:
                    yield number, path_of_row, own[0] if own else NO_LABEL
