"""Opens tables of image paths and labels as sources, and saves their indexes between runs."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.loaders.data.files.folder_scan import SETTLING_NS
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.files.left_out import warn_of_left_out
from penstock.loaders.data.files.path_patterns import AnyPath
from penstock.loaders.data.indexes.bucket_index import BucketIndex
from penstock.loaders.data.indexes.open_samples import load_or_make, serve_samples
from penstock.loaders.data.labels.collect_texts import RAISE, TextOptions
from penstock.loaders.data.labels.conflicts import Conflicts
from penstock.loaders.data.labels.labelled import serve_labels
from penstock.loaders.data.labels.row_errors import RowOrigin
from penstock.loaders.data.labels.stored_labels import Labels
from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.remote.object_stats import stat_places
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.remote.path_or_url import absolute, folder_of, without_key
from penstock.loaders.data.remote.remote_source import RemoteOptions, check_reading
from penstock.loaders.data.samples.columns import SavedColumns
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.samples.version import MISSING
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.tables.list_index import index_list
from penstock.loaders.data.tables.row_packer import RowPacker
from penstock.loaders.data.tables.table_rows import Row, choose_reader, read_parquet
from penstock.loaders.system.file_read import read_error
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.checked import checked_bool
from penstock.pipelines.messages.user_warnings import warn_user

_SHOW_INTERVAL = 1 << 14


def open_tables(
    paths: Sequence[bytes],
    *,
    image: str | None = None,
    label: str | Sequence[str] | Mapping[str, str] | None = None,
    root: AnyPath | None = None,
    classes: Sequence[str | bytes] | Mapping[str, Sequence[str | bytes]] | None = None,
    missing_labels: str = RAISE,
    text: str | None = None,
    missing_text: str = RAISE,
    rescan: bool = False,
    index: BucketIndex | None = None,
    **reading: Any,
) -> Source:
    """Open tables as one source; its images are the rows in their order.

    The index is saved in the user's cache folder. It is reused while the tables and a sample of the files are
    unchanged, unless `rescan`.

    Args:
        paths: CSV, TSV, JSON lines or Parquet files, recognised by suffix; files or URLs, read whole.
        image: column of the images' paths; the default is the first of IMAGE_COLUMNS, in upper or lower case.
        label: column of the labels; the default is the first of LABEL_COLUMNS, or one class for all. Integers and
            strings are classes; numbers with a point, and lists of numbers or of class names, are served as float32.
            Text that is a number or a list is parsed as one; text that nearly is one is refused. "age:float" serves
            the numbers of column "age" as float32. A list of columns, or a dict of columns by name, gives several
            named labels.
        root: folder or URL of relative paths; the default is the table's folder.
        classes: names of the classes, or the order of labels that are names; for several labels, a dict of them.
        missing_labels: "raise" for rows without a label (empty, null, NaN, class number -1), or "leave_out".
        text: column of texts, such as captions: the field `text`. No column of labels is needed then.
        missing_text: "raise" for rows without a text (empty, null, an empty list), or "leave_out".
        rescan: whether to read tables and files again even if they are unchanged.
        index: an index from a bucket with sizes and versions of the images, which are then not looked up.
        reading: fields of RemoteOptions.

    Raises LoaderError: E-NODATA without rows or files, E-FORMAT for unusable rows, E-DEPENDENCY; ValueError
    for columns that do not exist.
    """
    chosen = (image, label, classes, missing_labels, *TextOptions.checked(text, missing_text).identity)
    base = None if root is None else as_root(root)
    checked_bool("rescan", rescan)
    images, labels = _open_images(list(map(absolute, paths)), base, chosen, reading, rescan, index)
    warn_of_left_out(images.skipped, {}, printable(paths[0]))
    return serve_labels(images, labels, has_list=classes is not None)


def _open_images(
    paths: list[bytes],
    base: bytes | None,
    chosen: tuple[Any, ...],
    reading: dict[str, Any],
    rescan: bool,
    index: BucketIndex | None,
) -> tuple[IndexedSource, SavedColumns | None]:
    """Return the images of tables, and the labels that are not class numbers."""
    access = Access.among(reading)
    made_by, settled = _describe_tables(paths, access)
    name = _name_index(paths, base, chosen)
    image, label, classes, missing_labels, *text = chosen

    def make() -> tuple[SamplesWriter, Labels]:
        packer = RowPacker(classes, missing_labels=missing_labels, text=TextOptions(*text))
        with ProgressBar("indexing", show_after_s=SHOW_AFTER_S) as bar:
            for path in paths:
                rows = choose_reader(path)(path, image, label, packer.labels, access)
                _pack_table(packer, path, base, rows, bar)
            look_up = partial(stat_places, access=access) if index is None else index.look_up
            return index_list(packer, bar, look_up)

    if index is not None:
        made_by += index.manifest.samples.digest
    kept = name if settled else None
    samples, labels = load_or_make(kept, made_by, make, access, rescan=rescan, looks=index is None)
    options = check_reading([samples.root], **reading)

    def reopen(rescan: bool) -> IndexedSource:
        return _open_images(paths, base, chosen, reading, rescan, index)[0]

    return serve_list(samples, options, reopen, base or folder_of(paths[0]), index=index), labels


def serve_list(
    samples: Samples,
    options: RemoteOptions,
    reopen: Callable[..., IndexedSource],
    base: bytes | None,
    *,
    is_listed: bool = True,
    index: BucketIndex | None = None,
) -> IndexedSource:
    """Return a source of the files or URLs of rows: image i belongs to row i.

    Warns (UserWarning) of missing files, and of files with different labels. A file may be in several rows. A missing
    file stays in the list, and reading it raises E-MISSING.
    """
    about: dict[str, Any] = {"base": base and without_key(base), "one_class": "rows without labels count as one class"}
    source = serve_samples(samples, options, reopen, index, is_listed=is_listed, **about)
    missing = np.flatnonzero(samples.versions == MISSING.number)
    if len(missing):
        first = printable(source.path(int(missing[0])))
        text = f"{len(missing):,} of {len(source):,} files do not exist, the first is {first}"
        warn_user(f"{text}; reading them raises E-MISSING, unless on_bad_sample handles it")
    Conflicts(*samples.header.conflicts).warn()
    return source


def as_root(root: AnyPath) -> bytes:
    """Return the option `root` as an absolute folder or URL."""
    return absolute(os.path.expanduser(os.fsencode(root)))


def _pack_table(packer: RowPacker, path: bytes, base: bytes | None, rows: Iterator[Row], bar: ProgressBar) -> None:
    begun = len(packer)
    unit = "row" if choose_reader(path) is read_parquet else "line"
    packer.begin(RowOrigin(path, unit), base or folder_of(path))
    try:
        for number, image, label in rows:
            packer.add(image, label, number)
            if len(packer) % _SHOW_INTERVAL == 0:
                bar.show(len(packer), what=f"indexing: {len(packer):,} rows of {printable(path)}")
    except OSError as error:
        raise read_error(error, path) from error
    if len(packer) == begun:
        raise LoaderError("E-NODATA", "the table has no rows", fix="pass a table with one row per image", path=path)


def _describe_tables(paths: list[bytes], access: Access) -> tuple[str, bool]:
    """Return sizes, times and inodes of tables, and whether any later change would change these."""
    if is_url(paths[0]):
        store = ObjectStore(access)
        objects = [store.stat(path.decode()) for path in paths]
        # Without times of change: existing indexes were made without them.
        stable = [each._replace(version=each.version._replace(ctime_ns=0)) for each in objects]
        return json.dumps(stable), all(each.version.is_known for each in objects)
    try:
        found = [os.stat(path) for path in paths]
    except OSError as error:
        raise read_error(error, paths[0]) from error
    stamps = [(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) for status in found]
    return json.dumps(stamps), all(status.st_mtime_ns < time.time_ns() - SETTLING_NS for status in found)


def _name_index(paths: list[bytes], base: bytes | None, options: Sequence[object]) -> bytes:
    """Return the file name of the index: a digest of the tables' paths, the folder of their images, and options."""
    digest = hashlib.blake2b(b"penstock table 5", digest_size=16)
    for path in paths:
        digest.update((path if is_url(path) else os.path.realpath(path)) + b"\0" + (base or folder_of(path)) + b"\0")
    digest.update(json.dumps(options, default=_as_json).encode())
    return digest.hexdigest().encode() + b".index"


def _as_json(value: Any) -> Any:
    return os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else list(value)
