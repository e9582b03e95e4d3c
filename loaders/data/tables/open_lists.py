"""Opens in-memory lists of image paths and labels as sources: pairs, columns, data frames, torchvision's folders."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice, repeat
from typing import Any, TypeGuard

import numpy as np

from penstock.loaders.data.files.indexed_source import MAX_FILE_BYTES, IndexedSource
from penstock.loaders.data.files.left_out import IMAGE_SUFFIXES, UNREAD_SUFFIXES, warn_of_left_out, warn_of_parts
from penstock.loaders.data.files.path_patterns import AnyPath
from penstock.loaders.data.indexes.bucket_index import BucketIndex
from penstock.loaders.data.labels.choose_columns import choose_columns
from penstock.loaders.data.labels.class_names import IN_FOLDERS, warn_of_classes
from penstock.loaders.data.labels.collect_texts import RAISE, TextOptions
from penstock.loaders.data.labels.labelled import serve_labels
from penstock.loaders.data.labels.row_errors import RowOrigin
from penstock.loaders.data.labels.stored_labels import save_with_labels
from penstock.loaders.data.remote.asked_once import look_up_once
from penstock.loaders.data.remote.object_stats import NONE_LISTED, Listed, stat_places
from penstock.loaders.data.remote.path_or_url import absolute, folder_of, without_query
from penstock.loaders.data.remote.remote_source import RemoteOptions, check_reading
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.tables.list_index import index_list
from penstock.loaders.data.tables.open_tables import as_root, serve_list
from penstock.loaders.data.tables.row_packer import NO_LABEL, RowPacker
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.targets import map_targets

Classes = Sequence[str | bytes] | Mapping[str, Sequence[str | bytes]]
_ARRAY = ".npy"  # an array per file; a folder with images may contain others
LIST_SUFFIXES = (*sorted(IMAGE_SUFFIXES), _ARRAY)


def is_list(spec: object) -> bool:
    """Return whether `spec` is a list of (path, label), a pair (paths, labels), or a list of paths of images."""
    return _form(spec) is not None


def open_list(
    spec: Any,
    *,
    root: AnyPath | None = None,
    classes: Classes | None = None,
    missing_labels: str = RAISE,
    **options: Any,
) -> Source:
    """Open a list of (path, label), a pair (paths, labels), or a list of paths, which then form one class.

    A tuple of two lists of paths and names is a pair; a list of two lists is a list of rows. Paths are file paths, or
    URLs of one protocol. A label is a class number or name, a float, a list of numbers, a set or list of class names,
    or a dict of such labels by name. `root` is the folder or URL of relative paths, by default the working directory.
    missing_labels: as in open_tables. `options`: fields of RemoteOptions. Raises LoaderError as open_tables,
    ValueError.
    """
    form, packer = _form(spec), RowPacker(classes, missing_labels=missing_labels)
    if form == "columns":
        paths, labels = spec
        if isinstance(labels, str):
            _checked_row(labels, 2)
        if labels is None:
            raise ValueError("labels must not be None: pass only the list of paths if the images have no labels")
        for column in labels.values() if isinstance(labels, Mapping) else [labels]:
            if len(paths) != len(column):
                raise ValueError(f"paths and labels must be of equal length, got {len(paths):,} and {len(column):,}")
        rows = _pair(packer, paths, labels, labels.tolist() if hasattr(labels, "tolist") else labels)
    else:
        rows = map(_checked_row, spec, count(1)) if form == "rows" else zip(spec, repeat(NO_LABEL))
    return _open_rows(packer, rows, root, has_list=classes is not None, **options)


def is_frame(spec: object) -> bool:
    """Return whether `spec` is a data frame, such as those of pandas and polars."""
    return hasattr(spec, "columns") and hasattr(spec, "__getitem__") and not hasattr(spec, "column_names")


def open_frame(
    frame: Any,
    *,
    image: object = None,
    label: object = None,
    root: AnyPath | None = None,
    classes: Classes | None = None,
    missing_labels: str = RAISE,
    text: object = None,
    missing_text: str = RAISE,
    **options: Any,
) -> Source:
    """Open a data frame, with columns as in open_tables, and paths and options as in open_list."""
    texts = TextOptions.checked(text, missing_text)
    packer = RowPacker(classes, missing_labels=missing_labels, text=texts)
    image, label = choose_columns(list(frame.columns), image, label, "the data frame", packer.labels)
    labels = repeat(NO_LABEL, len(frame[image])) if label is None else map_targets(frame.__getitem__, label)
    return _open_rows(
        packer, _pair(packer, frame[image], labels, labels), root, has_list=classes is not None, **options
    )


def _pair(
    packer: RowPacker, paths: Iterable[object], labels: object, values: Iterable[object]
) -> Iterator[tuple[object, object]]:
    """Return rows (path, label) from a column of paths and one or, by name, several columns of labels."""
    if isinstance(labels, Mapping):
        values = (dict(zip(labels, row, strict=True)) for row in zip(*labels.values(), strict=True))
    packer.labels.declare_categories(labels if isinstance(labels, Mapping) else {"": labels})
    return zip(paths, values, strict=True)


def is_samples(spec: object) -> bool:
    """Return whether `spec` is a data set of torchvision that lists its files, such as an ImageFolder."""
    return hasattr(spec, "classes") and _form(getattr(spec, "samples", None)) == "rows"


def open_samples(data: Any, *, max_file_bytes: int = MAX_FILE_BYTES) -> Source:
    """Open torchvision's ImageFolder or DatasetFolder: the same images and order. Its transform is not applied."""
    if getattr(data, "target_transform", None) is not None:
        raise ValueError("target_transform must be None: pass a list of (path, label) with the labels that it returns")
    if getattr(data, "transform", None) is not None:
        warn_user("the data set's transform is not applied: pass pipeline= instead")
    classes = [name if isinstance(name, str) else ", ".join(name) for name in data.classes]
    numbers = getattr(data, "class_to_idx", None) or {}
    if list(data.classes) == classes and any(numbers.get(name, at) != at for at, name in enumerate(classes)):
        named: dict[int, list[str]] = {}  # a custom find_classes may number them differently
        for name, number in numbers.items():
            named.setdefault(number, []).append(name)
        classes = [", ".join(named.get(number, [f"class {number}"])) for number in range(max(named) + 1)]
    packer = RowPacker(classes)
    packer.labels.column().keeps_numbers = True  # even if folders are named by numbers
    return _open_rows(packer, data.samples, None, has_list=True, max_file_bytes=max_file_bytes)


def open_images(paths: Collection[bytes], *, classes: Classes | None = None, **options: Any) -> Source:
    """Open the image files of a pattern: the class of each is the name of its folder.

    A single folder is one class, b".", unless `classes` names it.

    paths: paths of the files, or a mapping of URLs to their entries in the storage's listing.
    """
    options["listed"] = paths if isinstance(paths, Mapping) else {}
    folders = {folder_of(absolute(path)) for path in paths}
    names = {os.path.basename(folder) for folder in folders}
    if classes is None and len(names) == 1 < len(folders):
        raise ValueError(
            f"images in {len(folders):,} folders, all named {printable(names.pop())}, have no class: pass a list of "
            "(path, label), or the parent of the class folders; a list of paths without labels is one class"
        )
    labelled = ((path, os.path.basename(folder_of(absolute(path)))) for path in paths)
    rows = zip(paths, repeat(NO_LABEL)) if classes is None and len(folders) == 1 else labelled
    source = _open_rows(RowPacker(classes, are_names=True), rows, None, has_list=True, **options)
    if classes is None:
        warn_of_parts(source.classes, "the pattern")
        warn_of_classes(source.classes, cure=IN_FOLDERS)
    return source


def _open_rows(
    packer: RowPacker,
    rows: Iterable[tuple[object, object]],
    root: AnyPath | None,
    *,
    has_list: bool,
    listed: Listed = NONE_LISTED,
    index: BucketIndex | None = None,
    **reading: Any,
) -> Source:
    base = None if root is None else as_root(root)
    packer.begin(RowOrigin(), base)
    for number, (path, label) in enumerate(rows, start=1):
        packer.add(path, label, number)
    options = check_reading(packer.folders, **reading)
    with ProgressBar("indexing", show_after_s=SHOW_AFTER_S) as bar:
        look_up = partial(look_up_once, packer.digest, listed, options) if index is None else index.look_up
        samples, labels = save_with_labels(None, *index_list(packer, bar, look_up))
    images = _serve(samples, options, base, index)
    warn_of_left_out(images.skipped, {}, "the list")
    return serve_labels(images, labels, has_list=has_list)


def _serve(samples: Samples, options: RemoteOptions, base: bytes | None, index: BucketIndex | None) -> IndexedSource:
    def reopen(rescan: bool) -> IndexedSource:
        return _serve(_looked_up_again(samples, options), options, base, None)

    return serve_list(samples, options, reopen, base, is_listed=False, index=index)


def _looked_up_again(samples: Samples, options: RemoteOptions) -> Samples:
    """Return the index of the same rows with the current state of their files."""
    packer = RowPacker(None if samples.header.flat else samples.classes)
    if not samples.header.flat:
        packer.labels.column().keeps_numbers = True
    for row, label in enumerate(samples.labels_of(np.arange(len(samples))).tolist()):
        packer.add(samples.container(row).name, NO_LABEL if samples.header.flat else label, row + 1)
    return save_with_labels(None, *index_list(packer, look_up=partial(stat_places, access=options)))[0]


def _checked_row(row: object, number: int) -> tuple[object, object]:
    if not isinstance(row, (tuple, list)) or len(row) != 2:
        raise RowOrigin()(number, f"a row must be (path, label), got {shown(row)}")
    return row[0], row[1]


def _form(spec: object) -> str | None:
    """Return "rows" for a list of (path, label), "columns" for (paths, labels), "paths" for paths alone, or None."""
    if not isinstance(spec, (tuple, list)) or not spec or is_frame(spec[0]):
        return None
    first = spec[0]
    if _is_path(first):
        return "paths" if _may_be_image(first) else None
    head = list(islice(first, 2)) if hasattr(first, "__len__") and hasattr(first, "__iter__") else []
    if not head or not _is_path(head[0]):
        return None
    # The first path is followed by its label in rows, and by another path in columns.
    if len(first) == 2 and (not _is_path(head[1]) or (isinstance(spec, list) and not _is_columns(spec))):
        return "rows"
    return "columns" if len(spec) == 2 else None


def _is_columns(spec: Sequence[Any]) -> bool:
    """Return whether the second of two parts cannot be a row (path, label)."""
    return len(spec) == 2 and (isinstance(spec[1], str) or not _is_path(next(iter(spec[1]), None)))


def _is_path(value: object) -> TypeGuard[AnyPath]:
    return isinstance(value, (str, bytes, os.PathLike))


def _may_be_image(path: AnyPath) -> bool:
    """Return whether a path looks like an image, and not like a folder, a table or a container."""
    suffix = os.path.splitext(os.fsdecode(without_query(os.fsencode(path))))[1].lower()
    return suffix in IMAGE_SUFFIXES | UNREAD_SUFFIXES | {_ARRAY} or (not suffix and not os.path.isdir(path))
