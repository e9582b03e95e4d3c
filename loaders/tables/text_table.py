"""Reads the rows of CSV, TSV and JSON-lines tables."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from typing import Any, TextIO

from penstock.loaders.labels.row_origin import RowOrigin
from penstock.loaders.remote.object_store import is_url
from penstock.loaders.remote.places import read_whole, without_query
from penstock.loaders.tables.row_packer import NO_LABEL
from penstock.loaders.tables.table_columns import choose_columns
from penstock.pipelines.checked import shown
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.targets import map_targets

CSV_SUFFIXES, JSON_SUFFIXES = (".csv", ".tsv"), (".jsonl", ".ndjson")
Row = tuple[int, Any, Any]  # number of its line, path, label (or NO_LABEL, or a dict of several)


def read_csv(path: bytes, image: Any, label: Any) -> Iterator[Row]:
    """Yield the rows of a CSV file, or of one separated by tabs if its name ends in .tsv, as strings.

    The first line names the columns. Empty lines are skipped. Raises LoaderError E-FORMAT, OSError.
    """
    origin = RowOrigin(path, "line")
    with _open_text(path) as file:
        delimiter = "\t" if without_query(path).lower().endswith(b".tsv") else ","
        reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
        try:
            header = next(reader, None)
            if header is None:
                raise LoaderError("E-NODATA", "the table is empty", fix="pass a table with rows", path=path)
            image, label = choose_columns(header, image, label, printable(path))
            at_path, at_label = header.index(image), None if label is None else map_targets(header.index, label)
            for row in reader:
                if len(row) != len(header):
                    if not row:
                        continue
                    cause = f"{len(row)} column{'s' * (len(row) != 1)}, expected {len(header)}"
                    raise origin.error(reader.line_num, cause, "quote fields that contain the separator")
                yield (
                    reader.line_num,
                    row[at_path],
                    NO_LABEL if at_label is None else map_targets(row.__getitem__, at_label),
                )
        except csv.Error as error:
            raise origin.error(reader.line_num, str(error)) from error


def read_json_lines(path: bytes, image: Any, label: Any) -> Iterator[Row]:
    """Yield the rows of a file with one JSON object per line; the first one names the columns.

    Raises LoaderError E-FORMAT, OSError.
    """
    origin = RowOrigin(path, "line")
    is_first = True
    with _open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            row = _parse(line, origin, number)
            if is_first:
                image, label = choose_columns(list(row), image, label, printable(path))
                is_first = False
            try:
                yield number, row[image], NO_LABEL if label is None else map_targets(row.__getitem__, label)
            except KeyError as error:
                raise origin.error(number, f"no {printable(str(error.args[0]))}") from None


def _parse(line: str, origin: RowOrigin, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise origin.error(number, f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise origin.error(number, f"a line must be a JSON object, got {shown(row)}")
    return row


def _open_text(path: bytes) -> TextIO:
    """Open UTF-8 text, with or without a byte order mark; other bytes are kept, since names of files may be any."""
    if is_url(path):
        file = io.BytesIO(read_whole(path))
        return io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    return open(os.fsdecode(path), encoding="utf-8-sig", errors="surrogateescape", newline="")
