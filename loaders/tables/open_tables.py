"""Opens tables of image paths and labels as sources, and keeps their indexes between runs."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from penstock.loaders.sources.folder_index import FolderIndex
from penstock.loaders.sources.image_files import MAX_FILE_BYTES
from penstock.loaders.system.file_read import read_error
from penstock.loaders.system.progress_bar import ProgressBar
from penstock.loaders.system.saved_columns import load_saved, save_in_memory, save_index
from penstock.loaders.tables.arrow_table import PARQUET_SUFFIXES, read_parquet
from penstock.loaders.tables.image_list import ImageList, are_unchanged
from penstock.loaders.tables.list_index import ListIndexWriter
from penstock.loaders.tables.row_origin import RowOrigin
from penstock.loaders.tables.row_packer import RowPacker
from penstock.loaders.tables.text_table import CSV_SUFFIXES, JSON_SUFFIXES, Row, read_csv, read_json_lines
from penstock.pipelines.checked import checked_bool, checked_int
from penstock.pipelines.errors import LoaderError, printable

TABLE_SUFFIXES = (*CSV_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES)
SHOW_AFTER_S = 1.0  # what takes less is not shown on the terminal
_SHOW_INTERVAL = 1 << 14
# Some file systems keep time this coarsely: a table that changed just now may change again within the same stamp.
_SETTLING_NS = 2_000_000_000


def open_tables(
    paths: Sequence[bytes],
    *,
    image: str | None = None,
    label: str | None = None,
    root: str | bytes | os.PathLike[Any] | None = None,
    classes: Sequence[str | bytes] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    rescan: bool = False,
) -> ImageList:
    """Open tables as one source, whose images are the rows in their order.

    The index is saved in the user's cache folder. It is used again while the tables and a sample of the files are
    unchanged, unless `rescan`.

    Args:
        paths: CSV, TSV, JSON lines or Parquet files, by their suffixes.
        image: column of the images' paths; the default is the first of IMAGE_COLUMNS that there is.
        label: column of the labels; the default is the first of LABEL_COLUMNS, or one class for all.
        root: folder to which relative paths belong; the default is that of the table.
        classes: names of the classes, or the order of labels that are names.
        max_file_bytes: a larger file is refused before it is read.
        rescan: whether to read tables and files again in any case.

    Raises LoaderError: E-NODATA without rows or files, E-FORMAT for rows that cannot be used, E-DEPENDENCY; ValueError
    for columns that do not exist.
    """
    limit = checked_int("max_file_bytes", max_file_bytes, 1)
    paths = [os.path.abspath(path) for path in paths]
    base = None if root is None else os.path.abspath(os.path.expanduser(os.fsencode(root)))
    names = None if classes is None else list(classes)
    reopen = partial(
        open_tables, paths, image=image, label=label, root=base, classes=names, max_file_bytes=max_file_bytes
    )
    made_by, settled = _describe_tables(paths)
    name = _name_index(paths, base, [image, label, names and list(map(os.fsdecode, names))])
    saved = None if checked_bool("rescan", rescan) else load_saved(name, FolderIndex)
    if saved is not None and saved.header.made_by == made_by and are_unchanged(saved, every_file=False):
        return ImageList(saved, limit, reopen, base or os.path.dirname(paths[0]))
    packer = RowPacker(names, untyped=all(_reader(path) is read_csv for path in paths))
    with ProgressBar("indexing", show_after_s=SHOW_AFTER_S) as bar:
        for path in paths:
            _pack_table(packer, path, base, _reader(path)(path, image, label), bar)
        writer = index_rows(packer, bar, made_by)
    index = save_index(name, writer.write, FolderIndex) if settled else save_in_memory(writer.write, FolderIndex)
    return ImageList(index, limit, reopen, base or os.path.dirname(paths[0]))


def index_rows(packer: RowPacker, bar: ProgressBar, made_by: str = "") -> ListIndexWriter:
    """Look up the files of all rows, and show how far that is."""
    total, what = len(packer), f"looking up {len(packer):,} files"
    return ListIndexWriter(packer, made_by, lambda done: bar.show(done, total, what))


def _pack_table(packer: RowPacker, path: bytes, base: bytes | None, rows: Iterator[Row], bar: ProgressBar) -> None:
    begun = len(packer)
    packer.begin(_origin(path), base or os.path.dirname(path))
    try:
        for number, image, label in rows:
            packer.add(image, label, number)
            if len(packer) % _SHOW_INTERVAL == 0:
                bar.show(len(packer), what=f"indexing: {len(packer):,} rows of {printable(path)}")
    except OSError as error:
        raise read_error(error, path) from error
    if len(packer) == begun:
        raise LoaderError("E-NODATA", "the table has no rows", fix="pass a table with one row per image", path=path)


def _reader(path: bytes) -> Callable[[bytes, Any, Any], Iterator[Row]]:
    suffix = os.fsdecode(os.path.splitext(path)[1]).lower()
    if suffix in CSV_SUFFIXES:
        return read_csv
    return read_json_lines if suffix in JSON_SUFFIXES else read_parquet


def _origin(path: bytes) -> RowOrigin:
    return RowOrigin(path, "row" if _reader(path) is read_parquet else "line")


def _describe_tables(paths: list[bytes]) -> tuple[str, bool]:
    """Return sizes, times and inodes of tables, and whether a later change of them will show in these."""
    try:
        found = [os.stat(path) for path in paths]
    except OSError as error:
        raise read_error(error, paths[0]) from error
    stamps = [(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) for status in found]
    return json.dumps(stamps), all(status.st_mtime_ns < time.time_ns() - _SETTLING_NS for status in found)


def _name_index(paths: list[bytes], base: bytes | None, options: list[Any]) -> bytes:
    """Return the file name of the index: a digest of the tables' paths, the folder of their images, and options."""
    digest = hashlib.blake2b(b"penstock table 1", digest_size=16)
    for path in paths:
        digest.update(os.path.realpath(path) + b"\0" + (base or os.path.dirname(path)) + b"\0")
    digest.update(json.dumps(options).encode())
    return digest.hexdigest().encode() + b".index"
