"""Reads the rows of tables: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from penstock.loaders.data.arrow.arrow_columns import holds_paths
from penstock.loaders.data.arrow.arrow_package import import_pyarrow
from penstock.loaders.data.arrow.arrow_parquet import open_file, read_schema
from penstock.loaders.data.labels.choose_columns import TABLE_LABELS, choose_columns, find_named
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.row_errors import Fail, RowOrigin
from penstock.loaders.data.labels.text_places import Twice, load_json
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.object_store import is_url
from penstock.loaders.data.remote.path_or_url import read_whole, without_query
from penstock.loaders.data.tables.row_packer import NO_LABEL
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.targets import map_targets

PARQUET_SUFFIX = ".parquet"
_BATCH_ROWS = 1 << 14
Row = tuple[int, object, Any]  # line number, path, label (or NO_LABEL, or a dict of several)


def read_csv(
    path: bytes, image: object, label: object, labels: LabelRows | None = None, access: Access = DEFAULT
) -> Iterator[Row]:
    """Yield the rows of a CSV file, or a tab-separated one if its name ends in .tsv, as strings.

    The first line names the columns. Empty lines are skipped. Raises LoaderError E-FORMAT, OSError.
    """
    fail = RowOrigin(path, "line")
    with _open_text(path, access) as file:
        reader = csv.reader(file, delimiter=_delimiter(path), skipinitialspace=True, strict=True)
        try:
            header = next(reader, None)
            if header is None:
                raise LoaderError("E-NODATA", "the table is empty", fix="pass a table with rows", path=path)
            paths, named = choose_columns(header, image, label, printable(path), labels)
            at_path, at_label = header.index(paths), None if named is None else map_targets(header.index, named)
            for row in reader:
                if len(row) != len(header):
                    if not row:
                        continue
                    cause = f"{len(row)} column{'s' * (len(row) != 1)}, expected {len(header)}"
                    raise fail(reader.line_num, cause, "quote fields that contain the separator")
                yield (
                    reader.line_num,
                    row[at_path],
                    NO_LABEL if at_label is None else map_targets(row.__getitem__, at_label),
                )
        except csv.Error as error:
            raise fail(reader.line_num, str(error)) from error


def read_json_lines(
    path: bytes, image: object, label: object, labels: LabelRows | None = None, access: Access = DEFAULT
) -> Iterator[Row]:
    """Yield the rows of a file with one JSON object per line; the first names the columns. A label may be absent.

    Raises LoaderError E-FORMAT, OSError.
    """
    fail = RowOrigin(path, "line")
    first = 0
    with _open_text(path, access) as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            row = _parse(line, fail, number)
            if not first:
                paths, named = choose_columns(list(row), image, label, printable(path), labels)
                first = number
            if paths not in row:
                raise fail(number, f"no {printable(paths)}")
            others = [] if named is not None else [name for name in row if name != paths]
            if (found := find_named(TABLE_LABELS, others)) is not None:
                cause = f"it has {printable(found)}, but line {first:,} does not"
                raise fail(number, cause, f"pass label={found!r}, or give every row a label")
            yield number, row[paths], NO_LABEL if named is None else map_targets(row.get, named)


def read_parquet(
    path: bytes, image: object, label: object, labels: LabelRows | None = None, access: Access = DEFAULT
) -> Iterator[Row]:
    """Yield the rows of a Parquet file. Raises LoaderError E-FORMAT, E-DEPENDENCY; ValueError for other columns."""
    schema = read_schema(path, access)
    paths, named = choose_columns(schema.names, image, label, printable(path), labels)
    kind = schema.field(paths).type
    if not holds_paths(kind.value_type if import_pyarrow().types.is_dictionary(kind) else kind):
        raise ValueError(f"column {paths!r} of {printable(path)} must contain paths (strings), got {kind}")
    number = 0
    columns = named if isinstance(named, dict) else {} if named is None else {"": named}
    with open_file(path, access=access) as (table, _):
        for batch in table.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys([paths, *columns.values()]))):
            images = batch.column(paths).to_pylist()
            for name, column in columns.items():
                if labels is not None and hasattr(batch.column(column), "dictionary"):
                    labels.column(name).declare(batch.column(column).dictionary.to_pylist())
            found = [batch.column(column).to_pylist() for column in columns.values()]
            for path_of_row, *own in zip(images, *found, strict=True):
                number += 1
                if isinstance(named, dict):
                    yield number, path_of_row, dict(zip(named, own, strict=True))
                else:
                    yield number, path_of_row, own[0] if own else NO_LABEL


def read_header(path: bytes, access: Access = DEFAULT) -> list[str]:
    """Return the names of a table's columns, none for an empty table. Raises LoaderError E-FORMAT, OSError."""
    if choose_reader(path) is read_parquet:
        return list(read_schema(path, access).names)
    with _open_text(path, access) as file:
        if choose_reader(path) is read_json_lines:
            return next((list(_parse(line, RowOrigin(path, "line"), 1)) for line in file if not line.isspace()), [])
        return next(csv.reader(file, delimiter=_delimiter(path), skipinitialspace=True), [])


def _delimiter(path: bytes) -> str:
    return "\t" if without_query(path).lower().endswith(b".tsv") else ","


def _parse(line: str, fail: Fail, number: int) -> dict[str, object]:
    try:
        row = load_json(line)
    except ValueError as error:
        raise fail(number, f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise fail(number, f"a line must be a JSON object, got {shown(row)}")
    if twice := [name for name, value in row.items() if isinstance(value, Twice)]:
        raise fail(number, f"the name {printable(twice[0])} occurs twice in this line", "remove one of its values")
    return row


def _open_text(path: bytes, access: Access = DEFAULT) -> TextIO:
    """Open UTF-8 text, with or without a byte order mark; other bytes are kept, since file names may contain any."""
    if is_url(path):
        file = io.BytesIO(read_whole(path, access))
        return io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    return open(os.fsdecode(path), encoding="utf-8-sig", errors="surrogateescape", newline="")


_READERS = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    PARQUET_SUFFIX: read_parquet,
}
TABLE_SUFFIXES = tuple(_READERS)


def choose_reader(path: bytes) -> Callable[..., Iterator[Row]]:
    """Return the function that reads the rows of a table, by its suffix.

    Its arguments are the path, the columns of images and labels, and optionally the LabelRows of the labels, which
    receive the labels with ":float" after their columns, and the categories that the table declares; and the Access.
    """
    return _READERS[os.fsdecode(os.path.splitext(without_query(path))[1]).lower()]
