"""Opens data of any kind as a source: it looks at a path or an object, and calls what opens that kind."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from penstock.loaders.data.arrow.arrow_files import open_arrow_files
from penstock.loaders.data.arrow.arrow_parquet import has_image_bytes
from penstock.loaders.data.arrow.dataset_object import is_dataset, open_dataset
from penstock.loaders.data.arrow.parquet_url import open_parquet
from penstock.loaders.data.arrow.saved_dataset import is_saved_dataset, open_saved_dataset
from penstock.loaders.data.cache.hdf5_cache import is_cache_set, open_cache
from penstock.loaders.data.cache.shards import MANIFEST, shard_paths
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.files.contract import Source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.files.path_patterns import expand_pattern, is_pattern
from penstock.loaders.data.files.reopen_source import Reopening
from penstock.loaders.data.files.source_faults import check_source
from penstock.loaders.data.foreign_data import cure_by_name, cure_of_missing, cure_of_object, cure_of_option
from penstock.loaders.data.labels.class_numbers import checked_classes, checked_classes_by_label
from penstock.loaders.data.labels.labelled import are_targets, label_source, names_numbers
from penstock.loaders.data.remote.object_store import is_url
from penstock.loaders.data.remote.path_or_url import is_file, without_query
from penstock.loaders.data.remote.pinned_urls import pin_url
from penstock.loaders.data.remote.remote_source import REMOTE_OPTIONS, check_remote
from penstock.loaders.data.remote.url_patterns import expand_url, is_url_pattern
from penstock.loaders.data.remote.whole_files import copy_urls, copy_whole
from penstock.loaders.data.tables import open_lists
from penstock.loaders.data.tables.open_tables import open_tables
from penstock.loaders.data.tables.table_rows import TABLE_SUFFIXES
from penstock.loaders.data.tables.url_folder import open_url_folder
from penstock.loaders.data.tars.tar_source import (
    COMPRESSED_TARS,
    TAR_OPTIONS,
    is_tar_folder,
    open_tar_folder,
    open_tars,
)
from penstock.loaders.data.views.chosen_classes import choose_classes, warn_of_text_order
from penstock.loaders.data.views.concat import concat_sources
from penstock.loaders.data.views.subset import PART_OPTIONS, take_part
from penstock.loaders.data.views.subset_spec import SubsetSpec
from penstock.pipelines.errors import LoaderError, printable

_PATHS = (str, bytes, os.PathLike)
SourceLike = Any  # a path, a list, a table ... or a Source: see open_source


class Kind(NamedTuple):
    """Describe a kind of data.

    Attributes:
        name: what messages call it.
        is_this: takes a path (bytes) or an object, and returns whether it is of this kind; of files that hold whole
            data sets, it takes the first path and the option `image`.
        open: takes that (of such files the list of their paths) and options, and returns the source.
        options: names of the options that create_loader hands on to `open`.
        suffixes: of such files, in small letters.
    """

    name: str
    is_this: Callable[..., bool]
    open: Callable[..., Source]
    options: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()


def _is_any(*_: Any) -> bool:
    return True


def _open_caches(paths: list[bytes], *, any_owner: bool = False, **remote_options: Any) -> Source:
    here = copy_urls(paths, check_remote(paths, **remote_options))
    caches = [open_cache(path, any_owner=any_owner) for path in here]
    if len(caches) > 1 and any(about.shard[1] > 1 for cache in caches for about in cache.about):
        raise ValueError("shards are not one source each: pass the folder of their set")
    return concat_sources(caches)


def _is_list_of_data(spec: Any) -> bool:
    return isinstance(spec, (tuple, list)) and len(spec) > 0 and all(map(_is_data, spec))


def _is_data(part: Any) -> bool:
    return isinstance(part, (*_PATHS, Source)) or is_dataset(part) or open_lists.is_frame(part)


def _open_cache_url(url: bytes, **remote_options: Any) -> Source:
    """Copy the set of cache shards below a URL, and open the copy."""
    remote = check_remote([url], **remote_options)
    assert remote is not None
    folder = os.path.dirname(copy_whole(url + b"/" + MANIFEST, remote))
    for path in shard_paths(folder):
        copy_whole(url + b"/" + os.path.basename(path), remote, folder)
    return open_cache(folder)


def _open_list(specs: list[Any], **options: Any) -> Source:
    """Open data sets as one: files of one kind together, others each by itself."""
    paths = list(map(os.fsencode, specs)) if all(isinstance(spec, _PATHS) for spec in specs) else []
    paths = [pin_url(path) for path in paths]
    if paths and not any(_is_url_folder(path) or os.path.isdir(path) for path in paths):

        def find() -> list[bytes]:
            return [file for path in paths for file in _expand(path)]

        files = find()
        kind = _find_file_kind(files)
        if kind is not None and all(is_url(file) or os.path.exists(file) for file in files):
            return _open_found(find, lambda found: _open_kind(kind, found, options))
    return concat_sources([_open_data(spec, options) for spec in specs])


def _expand(path: bytes) -> Collection[bytes]:
    if is_url(path):
        return expand_url(path)
    return expand_pattern(path) if is_pattern(path) else [path]


def _is_array_pair(spec: Any) -> bool:
    return isinstance(spec, (tuple, list)) and len(spec) == 2 and all(hasattr(part, "__len__") for part in spec)


def _open_arrays(pair: Any, classes: Sequence[str | bytes] | None = None) -> Source:
    images, labels = pair
    if not are_targets(labels) and not names_numbers(classes):
        return ArraySource(images, labels, classes=classes)
    return label_source(ArraySource(images, np.zeros(len(images), np.int64)), labels, classes)


_HAVE_HOSTS = {b"s3", b"gs", b"gcs", b"az", b"abfs", b"http", b"https", b"hf"}  # schemes of a bucket or a host
_COLUMNS = ("image", "label")
_LABELS = ("classes", "missing_labels")
_TABLE_OPTIONS = (*_COLUMNS, "root", *_LABELS, *REMOTE_OPTIONS)
_DATASET_OPTIONS = (*_COLUMNS, *_LABELS, "split")
FILE_KINDS = [
    Kind("an HDF5 cache", _is_any, _open_caches, REMOTE_OPTIONS, (".h5", ".hdf5")),
    Kind(
        "Parquet files of images",
        has_image_bytes,
        open_parquet,
        (*_COLUMNS, *_LABELS, "cache_bytes", *REMOTE_OPTIONS),
        (".parquet",),
    ),
    Kind("a table of images", _is_any, open_tables, _TABLE_OPTIONS, TABLE_SUFFIXES),
    Kind("image files", _is_any, open_lists.open_images, ("classes", *REMOTE_OPTIONS), open_lists.LIST_SUFFIXES),
    Kind("tar files", _is_any, open_tars, TAR_OPTIONS, (".tar",)),
    Kind("tar files to be decompressed first", _is_any, open_tars, TAR_OPTIONS, COMPRESSED_TARS),
    Kind(
        "Arrow files",
        _is_any,
        open_arrow_files,
        (*_COLUMNS, *_LABELS, *REMOTE_OPTIONS),
        (".arrow", ".arrows", ".feather"),
    ),
]
FOLDER_KINDS = [
    Kind("a set of cache shards", is_cache_set, open_cache),
    Kind("a folder of tar files", is_tar_folder, open_tar_folder, TAR_OPTIONS),
    Kind("a folder of Hugging Face's save_to_disk", is_saved_dataset, open_saved_dataset, _DATASET_OPTIONS),
    Kind("a folder of images", os.path.isdir, ImageFolder),
]
# Of folders by URL: what is looked for by name comes first, because HTTP cannot list.
URL_FOLDER_KINDS = [
    Kind("a set of cache shards", lambda url: is_file(url + b"/" + MANIFEST), _open_cache_url, REMOTE_OPTIONS),
    Kind(
        "a folder of Hugging Face's save_to_disk",
        is_saved_dataset,
        open_saved_dataset,
        (*_DATASET_OPTIONS, *REMOTE_OPTIONS),
    ),
    Kind("a folder of tar files", is_tar_folder, open_tar_folder, TAR_OPTIONS),
    Kind("a folder of images", _is_any, open_url_folder, REMOTE_OPTIONS),
]
OBJECT_KINDS = [
    Kind("a Dataset of Hugging Face", is_dataset, open_dataset, _DATASET_OPTIONS),
    Kind("a list of (path, label)", open_lists.is_list, open_lists.open_list, ("root", *_LABELS, *REMOTE_OPTIONS)),
    Kind("a data frame", open_lists.is_frame, open_lists.open_frame, _TABLE_OPTIONS),
    Kind("an ImageFolder of torchvision", open_lists.is_samples, open_lists.open_samples),
    Kind("a list of these", _is_list_of_data, _open_list, ("classes",)),
    Kind("a pair (images, labels) of arrays", _is_array_pair, _open_arrays, ("classes",)),
]
# Options of create_loader that belong to the source, whatever the backend.
SOURCE_OPTIONS = frozenset(
    name for kind in (*FILE_KINDS, *FOLDER_KINDS, *OBJECT_KINDS) for name in kind.options
) | frozenset(PART_OPTIONS)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that belong to the source, and the others."""
    of_source = {name: value for name, value in options.items() if name in SOURCE_OPTIONS}
    return of_source, {name: value for name, value in options.items() if name not in of_source}


def select_options(path: str | bytes | os.PathLike[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `options` that data of the kind at `path` take."""
    named = os.fsencode(path)
    found: Kind | None = None
    if _is_url_folder(named):
        found = next(kind for kind in URL_FOLDER_KINDS if kind.is_this(named.rstrip(b"/")))
    elif not is_url(named) and not is_pattern(named):
        found = next((kind for kind in FOLDER_KINDS if kind.is_this(named)), None)
    found = found or _find_file_kind(list(_expand(named)), options.get("image"))
    taken = {"classes", *(found.options if found else ())} - set(() if is_url(named) else REMOTE_OPTIONS)
    return {name: value for name, value in options.items() if name in taken}


def open_source(
    spec: SourceLike, *, subset: SubsetSpec = None, max_per_class: int | None = None, **options: Any
) -> Source:
    """Open data of any kind as a Source, or a part of it; return a Source unchanged.

    spec: a path or URL of a folder, file or cache; a pattern of these with wildcards or braces; a pair (images, labels)
    of arrays; a list of paths, data frames, data sets and sources, which become one source. subset: which samples, as
    parse_subset takes it. max_per_class: at most so many samples of each class, of the subset if there is one.
    `options`: those of the kind.
    Every kind takes classes=, the names of the classes by their numbers, such as those of the training data.

    Raises LoaderError E-NODATA for a missing path or an empty part, ValueError for an unsupported file or object,
    and for an option that the kind does not have; TypeError for options with a Source.
    """
    if "classes" in options:
        options["classes"] = checked_classes_by_label(options["classes"])
    source = _open_data(spec, options)
    if source is not spec and options.get("classes") is None:
        warn_of_text_order(source)
    return take_part(source, subset, max_per_class)


def _open_data(spec: SourceLike, options: dict[str, Any]) -> Source:
    if isinstance(spec, _PATHS):
        return _open_path(os.fsencode(spec), options)
    if isinstance(spec, Source):
        others = sorted(options.keys() - {"classes"})
        if others:
            raise TypeError(f"an open source takes no options, got {', '.join(others)}")
        check_source(spec)
        return choose_classes(spec, checked_classes(options.get("classes")))
    for kind in OBJECT_KINDS:
        if kind.is_this(spec):
            return _open_kind(kind, spec, options)
    if cure := cure_of_object(spec):
        raise ValueError(f"a source cannot be this {type(spec).__name__}: {cure}")
    raise ValueError(
        f"a source must be a path, a URL, a list of (path, label), a pair (images, labels) of arrays, a table, or a "
        f"Source, got {type(spec).__name__}: see create_loader"
    )


def _open_kind(kind: Kind, what: Any, options: dict[str, Any]) -> Source:
    options = dict(options)
    classes = None if "classes" in kind.options else options.pop("classes", None)
    try:
        source = kind.open(what, **options)
        return choose_classes(source, checked_classes(classes))
    except LoaderError as error:
        cure = cure_by_name(what) if error.code == "E-NODATA" and isinstance(what, bytes) else None
        if cure is None:
            raise
        raise LoaderError(error.code, error.cause, fix=cure, path=error.path) from None
    except TypeError as error:
        unsuited = next((name for name in options if f"argument '{name}'" in str(error)), None)
        if unsuited is None:
            raise
    takes = f"it takes {', '.join(kind.options)}" if kind.options else "it takes no options"
    raise ValueError(f"{kind.name} has no option {unsuited}: {cure_of_option(unsuited, kind.options) or takes}")


def _open_path(path: bytes, options: dict[str, Any]) -> Source:
    if is_url(path):
        return _open_urls(path, options)
    if path.startswith(b"file://"):
        path = path[len(b"file://") :]
    if is_pattern(path):
        return _open_found(partial(expand_pattern, path), lambda found: _open_files(found, path, options))
    for kind in FOLDER_KINDS:
        if kind.is_this(path):
            return _open_kind(kind, path, options)
    if not os.path.exists(path):
        raise LoaderError("E-NODATA", "no such file or folder", fix=cure_of_missing(path), path=path)
    return _open_files([path], path, options)


def _open_urls(url: bytes, options: dict[str, Any]) -> Source:
    scheme, _, place = url.partition(b"://")
    if not place or (place.startswith(b"/") and scheme in _HAVE_HOSTS):
        raise ValueError(f"{printable(url)} names no bucket or host: write s3://bucket/folder/, for example")
    url = pin_url(url)
    if _is_url_folder(url):
        url = url.rstrip(b"/")
        kind = next(kind for kind in URL_FOLDER_KINDS if kind.is_this(url))
        return _open_kind(kind, url, options)
    return _open_found(partial(expand_url, url), lambda found: _open_files(found, url, options))


def _is_url_folder(path: bytes) -> bool:
    """Return whether a URL is one of a folder: it ends with a slash, or its last name has no dot."""
    name = path.rpartition(b"/")[2]
    return is_url(path) and not (b"." in name or b"?" in path or is_url_pattern(path))


def _open_found(find: Callable[[], Collection[bytes]], open_files: Callable[[Any], Source]) -> Source:
    """Open files that a pattern stands for; whenever the source is refreshed they are looked for again."""
    found = find()
    source: Any = open_files(found)
    refresh: Callable[[Any], Source] | None = getattr(type(source), "refreshed", None)
    if refresh is None:
        return source  # type: ignore[no-any-return]
    opened = weakref.ref(source)

    def refreshed() -> Source:
        assert refresh is not None
        return refresh(opened()) if find() == found else _open_found(find, open_files)

    source.refreshed = Reopening(refreshed)
    return source  # type: ignore[no-any-return]


def _open_files(paths: Collection[bytes], named: bytes, options: dict[str, Any]) -> Source:
    """Open files of one kind; `named` is what the user called them."""
    kind = _find_file_kind(list(paths), options.get("image"))
    cure = cure_by_name(next(iter(paths))) if kind is None else None
    if cure is not None:
        raise ValueError(f"{printable(named)} is of a format that is not read: {cure}")
    if kind is None:
        if len(paths) > 1 and any(map(os.path.isdir, paths)):
            raise ValueError(
                f"{printable(named)} stands for folders, and a pattern must stand for files: pass the folder that "
                "holds the class folders, a pattern of files such as 'photos/*/*.jpg', or a list of folders"
            )
        hint = " (a URL of a folder ends with a slash)" if is_url(named) else ""
        known = ", ".join(f"{kind.name} ({', '.join(kind.suffixes)})" for kind in FILE_KINDS)
        raise ValueError(f"{printable(named)} is not a source{hint}: pass a folder of images, or {known}")
    if kind.open is open_lists.open_images:  # whose missing files are served as on_bad_sample says
        return _open_kind(kind, paths, options)
    missing = [] if is_url(named) else [path for path in paths if not os.path.exists(path)]
    if missing and len(paths) > 1:
        cause = f"{len(missing):,} of the {len(paths):,} files that this pattern names do not exist, the first is "
        raise LoaderError("E-NODATA", f"{cause}{printable(missing[0])}", fix="check the pattern", path=named)
    return _open_kind(kind, list(paths), options)


def _find_file_kind(paths: list[bytes], image: str | None = None) -> Kind | None:
    """Return the kind that all files are of by their names; None if there is none. image: the option of that name."""
    names = [os.fsdecode(without_query(path)).lower() for path in paths]
    for kind in FILE_KINDS:
        if all(name.endswith(kind.suffixes) for name in names) and kind.is_this(paths[0], image):
            return kind
    return None
