"""Opening of data of any kind as a source: detect the kind of a path or an object, then call its opener."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from penstock.loaders.data.arrow.arrow_files import open_arrow_files
from penstock.loaders.data.arrow.arrow_parquet import has_image_bytes
from penstock.loaders.data.arrow.dataset_object import is_dataset, open_dataset
from penstock.loaders.data.arrow.parquet_url import open_parquet
from penstock.loaders.data.arrow.saved_dataset import is_saved_dataset, open_saved_dataset
from penstock.loaders.data.cache.hdf5_cache import is_cache_set, open_cache
from penstock.loaders.data.cache.shards import MANIFEST, shard_paths
from penstock.loaders.data.fields.texts_beside import add_texts_beside
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.files.path_patterns import expand_pattern, is_pattern
from penstock.loaders.data.foreign_data import cure_by_name, cure_of_missing, cure_of_object, cure_of_option
from penstock.loaders.data.indexes.bucket_index import FOLDER as FOLDER_OF_IMAGES
from penstock.loaders.data.indexes.bucket_index import TARS, read_bucket_index
from penstock.loaders.data.labels.class_names import IN_FOLDERS, warn_of_classes, warn_of_joined_classes
from penstock.loaders.data.labels.class_numbers import checked_classes, checked_classes_by_label
from penstock.loaders.data.labels.collect_texts import NO_TEXTS, RAISE, TextOptions
from penstock.loaders.data.labels.labelled import are_targets, label_source, names_numbers
from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.remote.object_store import is_url
from penstock.loaders.data.remote.path_or_url import is_file, without_query
from penstock.loaders.data.remote.pinned_urls import pin_url
from penstock.loaders.data.remote.remote_source import REMOTE_OPTIONS, check_reading
from penstock.loaders.data.remote.url_patterns import expand_url, is_url_folder, is_url_pattern
from penstock.loaders.data.remote.whole_files import copy_urls, copy_whole
from penstock.loaders.data.sources.contract import Reopening, SampledSource, Source
from penstock.loaders.data.sources.data import find_whole, join_sources
from penstock.loaders.data.sources.source_faults import check_source
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
from penstock.loaders.data.views.stacked import StackedSource
from penstock.loaders.data.views.subset import PART_OPTIONS, take_part
from penstock.loaders.front.loader_options import OpenOptions
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.checked import shown

FOLDER, URL_FOLDER, FILES, OBJECT = "folder", "folder by URL", "files", "object"
_PATHS = (str, bytes, os.PathLike)
SourceLike = object  # a path, a list, a table ... or a Source: see open_source


class Kind(NamedTuple):
    """A kind of data.

    Attributes:
        of: the container of this kind: FOLDER, URL_FOLDER, FILES or OBJECT.
        name: the name in messages.
        is_this: (path in bytes, or object) -> whether it is of this kind; for files, (first path, option `image`,
            access); for a folder by URL, (URL, access).
        open: (path or object, or for files the list of paths, and options) -> the source.
        options: names of the options that create_loader passes to `open`, and `text` of those with texts in files
            beside images.
        suffixes: file suffixes in lower case.
    """

    of: str
    name: str
    is_this: Callable[..., bool]
    open: Callable[..., Source]
    options: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()

    @property
    def has_texts_beside(self) -> bool:
        """Whether its samples are image files, so that texts may be in files beside them."""
        return self.open in (ImageFolder, open_lists.open_images, open_lists.open_list, open_lists.open_samples)


def _is_any(*_: object) -> bool:
    return True


def _open_caches(paths: list[bytes], *, any_owner: bool = False, **remote_options: Any) -> Source:
    here = copy_urls(paths, check_reading(paths, **remote_options))
    caches = [open_cache(path, any_owner=any_owner) for path in here]
    if len(caches) > 1 and any(about.shard[1] > 1 for cache in caches for about in cache.about):
        raise ValueError("a shard is not a source: pass the folder of the whole set of shards")
    return join_sources(caches)


def _is_list_of_data(spec: object) -> bool:
    return isinstance(spec, (tuple, list)) and len(spec) > 0 and all(map(_is_data, spec))


def _is_data(part: object) -> bool:
    return isinstance(part, (*_PATHS, Source)) or is_dataset(part) or open_lists.is_frame(part)


def _has_manifest(url: bytes, access: Access) -> bool:
    return is_file(url + b"/" + MANIFEST, access)


def _open_cache_url(url: bytes, **remote_options: Any) -> Source:
    """Copy the set of cache shards below a URL, and open the copy."""
    remote = check_reading([url], **remote_options)
    folder = os.path.dirname(copy_whole(url + b"/" + MANIFEST, remote))
    for path in shard_paths(folder):
        copy_whole(url + b"/" + os.path.basename(path), remote, folder)
    return open_cache(folder)


def _open_list(specs: Sequence[Any], **options: Any) -> Source:
    """Open data sets as one source: files of one kind together, other data separately."""
    paths = list(map(os.fsencode, specs)) if all(isinstance(spec, _PATHS) for spec in specs) else []
    paths = [pin_url(path) for path in paths]
    if paths and "index" in options:
        options["index"] = options["index"].of(paths)
    if paths and not any(is_url_folder(path) or os.path.isdir(path) for path in paths):

        def find() -> list[bytes]:
            return [file for path in paths for file in _expand(path, Access.among(options))]

        files = find()
        kind = _kind_of(files, options)
        if kind is not None and all(is_url(file) or os.path.exists(file) for file in files):
            return _open_found(kind, files, find, lambda: _open_list(paths, **options), options)
    sources = [_open_data(spec, options) for spec in specs]
    warn_of_joined_classes(sources)
    return join_sources(sources)


def _expand(path: bytes, access: Access) -> Collection[bytes]:
    if is_url(path):
        return expand_url(path, access)
    return expand_pattern(path) if is_pattern(path) else [path]


def _is_array_pair(spec: object) -> bool:
    return isinstance(spec, (tuple, list)) and len(spec) == 2 and all(hasattr(part, "__len__") for part in spec)


def _open_arrays(pair: Any, classes: Sequence[str | bytes] | None = None) -> Source:
    images, labels = pair
    if not are_targets(labels) and not names_numbers(classes):
        return ArraySource(images, labels, classes=classes)
    return label_source(ArraySource(images, np.zeros(len(images), np.int64)), labels, classes)


_HAVE_HOSTS = {b"s3", b"gs", b"gcs", b"az", b"abfs", b"http", b"https", b"hf"}  # schemes of a bucket or a host
_COLUMNS = ("image", "label")
_TEXTS = ("text", "missing_text")
_LABELS = ("classes", "missing_labels")
_TABLE_OPTIONS = (*_COLUMNS, *_TEXTS, "root", *_LABELS, "index", *REMOTE_OPTIONS)
_LIST_OPTIONS = ("root", *_TEXTS, *_LABELS, "index", *REMOTE_OPTIONS)
_PARQUET_OPTIONS = (*_COLUMNS, *_TEXTS, *_LABELS, "cache_bytes", *REMOTE_OPTIONS)
_ARROW_OPTIONS = (*_COLUMNS, *_TEXTS, *_LABELS, *REMOTE_OPTIONS)
_DATASET_OPTIONS = (*_COLUMNS, *_TEXTS, *_LABELS, "split")
_SAVED = "a folder of Hugging Face's save_to_disk"
_IMAGES = Kind(
    FILES,
    "image files",
    _is_any,
    open_lists.open_images,
    ("classes", *_TEXTS, "index", *REMOTE_OPTIONS),
    open_lists.LIST_SUFFIXES,
)
_OF_TARS = Kind(URL_FOLDER, "a folder of tar files", is_tar_folder, open_tar_folder, TAR_OPTIONS)
_OF_IMAGES = Kind(URL_FOLDER, "a folder of images", _is_any, open_url_folder, ("index", *REMOTE_OPTIONS))
# The first match is used. For folders by URL, kinds with a known file name come first, because HTTP cannot list.
KINDS = (
    Kind(FOLDER, "a set of cache shards", is_cache_set, open_cache),
    Kind(FOLDER, "a folder of tar files", is_tar_folder, open_tar_folder, TAR_OPTIONS),
    Kind(FOLDER, _SAVED, is_saved_dataset, open_saved_dataset, _DATASET_OPTIONS),
    Kind(FOLDER, "a folder of images", os.path.isdir, ImageFolder, _TEXTS),
    Kind(URL_FOLDER, "a set of cache shards", _has_manifest, _open_cache_url, REMOTE_OPTIONS),
    Kind(URL_FOLDER, _SAVED, is_saved_dataset, open_saved_dataset, (*_DATASET_OPTIONS, *REMOTE_OPTIONS)),
    _OF_TARS,
    _OF_IMAGES,
    Kind(FILES, "an HDF5 cache", _is_any, _open_caches, REMOTE_OPTIONS, (".h5", ".hdf5")),
    Kind(FILES, "Parquet files of images", has_image_bytes, open_parquet, _PARQUET_OPTIONS, (".parquet",)),
    Kind(FILES, "a table of images", _is_any, open_tables, _TABLE_OPTIONS, TABLE_SUFFIXES),
    _IMAGES,
    Kind(FILES, "tar files", _is_any, open_tars, TAR_OPTIONS, (".tar",)),
    Kind(FILES, "tar files to decompress first", _is_any, open_tars, TAR_OPTIONS, COMPRESSED_TARS),
    Kind(FILES, "Arrow files", _is_any, open_arrow_files, _ARROW_OPTIONS, (".arrow", ".arrows", ".feather")),
    Kind(OBJECT, "a Dataset of Hugging Face", is_dataset, open_dataset, _DATASET_OPTIONS),
    Kind(OBJECT, "a list of (path, label)", open_lists.is_list, open_lists.open_list, _LIST_OPTIONS),
    Kind(OBJECT, "a data frame", open_lists.is_frame, open_lists.open_frame, _TABLE_OPTIONS),
    Kind(OBJECT, "an ImageFolder of torchvision", open_lists.is_samples, open_lists.open_samples, _TEXTS),
    Kind(OBJECT, "a list of these", _is_list_of_data, _open_list, ("classes",)),
    Kind(OBJECT, "a pair (images, labels) of arrays", _is_array_pair, _open_arrays, ("classes",)),
)
_INDEXED_FOLDERS = {TARS: _OF_TARS, FOLDER_OF_IMAGES: _OF_IMAGES}  # folders by URL, by the kind of an index
_CLASS_FOLDERS = (ImageFolder, open_url_folder, open_lists.open_samples)  # openers of folders without `classes`
# Options of create_loader that belong to the source, for every backend.
SOURCE_OPTIONS = frozenset(name for kind in KINDS for name in kind.options) | frozenset(PART_OPTIONS)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the source, and the other options."""
    of_source = {name: value for name, value in options.items() if name in SOURCE_OPTIONS}
    return of_source, {name: value for name, value in options.items() if name not in of_source}


def select_options(path: str | bytes | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `options` that the kind of data at `path` accepts."""
    image = options.get("image")
    image = image if isinstance(image, str) or not image else image[0]
    kind, _, _ = _find(os.fsencode(path), {**options, "image": image})
    accepted = {"classes", *(kind.options if kind else ())} - set(() if is_url(os.fsencode(path)) else REMOTE_OPTIONS)
    accepted.discard("index")  # it belongs to one data set
    return {name: value for name, value in options.items() if name in accepted}


def open_source(spec: SourceLike, **options: Unpack[OpenOptions]) -> SampledSource:
    """Open data of any kind as a Source, or a part of it; return a Source unchanged.

    spec: a path or URL of a folder, file or cache; a pattern of these with wildcards or braces; a pair (images, labels)
        of arrays; a list of paths, data frames, data sets and sources, which become one source. options: see
    help(OpenOptions); every kind of data accepts subset, max_per_class and classes, the class names by class number,
    such as those of the training data.

    Raises LoaderError E-NODATA for a missing path or an empty part, ValueError for an unsupported file or object,
    and for an option that the kind does not accept; TypeError for options with a Source.
    """
    given: dict[str, Any] = {**options}
    if given.get("index") is not None:
        if given.get("rescan"):
            raise ValueError("rescan makes an index, and index reads one: pass only one of them")
        given["index"] = read_bucket_index(given["index"], Access.among(given))
    else:
        given.pop("index", None)
    part = take_options(given)
    if "classes" in given:
        given["classes"] = checked_classes_by_label(given["classes"])
    source = _open_data(spec, given)
    if source is not spec and given.get("classes") is None:
        warn_of_text_order(source)
    return take_part(source, **part)


def take_options(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options that choose a part of the data from `options`, and return them."""
    return {name: options.pop(name) for name in PART_OPTIONS if name in options}


def _open_data(spec: SourceLike, options: dict[str, Any]) -> Source:
    if isinstance(options.get("image"), (tuple, list)):
        return _open_bands(spec, options)
    if isinstance(spec, _PATHS):
        return _open_path(os.fsencode(spec), options)
    if isinstance(spec, Source):
        others = sorted(options.keys() - {"classes"})
        if others:
            raise TypeError(f"an open source does not accept options, got {', '.join(others)}")
        check_source(spec)
        return choose_classes(spec, checked_classes(options.get("classes")))
    kind = _first(OBJECT, spec)
    if kind is not None:
        return _open_kind(kind, spec, options)
    if cure := cure_of_object(spec):
        raise ValueError(f"this {type(spec).__name__} is not a source: {cure}")
    raise ValueError(
        f"a source must be a path, a URL, a list of (path, label), a pair (images, labels) of arrays, a table, or a "
        f"Source, got {type(spec).__name__}: see create_loader"
    )


def _open_bands(spec: SourceLike, options: dict[str, Any]) -> Source:
    """Open a stack of several images of each sample: members of tars with the same key, or columns of one table."""
    names = options["image"]
    if len(names) < 2 or not all(isinstance(name, str) for name in names):
        raise ValueError(f"image must be a name, or several names for a stack, got {shown(names)}")
    parts = [_open_data(spec, {**options, "image": name}) for name in names]
    has_keys = all(isinstance(whole, IndexedSource) and whole.samples.has_ranges for whole in find_whole(parts[0]))
    return StackedSource(parts, "name" if has_keys else "position")


def _open_kind(kind: Kind, what: object, options: dict[str, Any]) -> Source:
    options = dict(options)
    beside = NO_TEXTS
    if kind.has_texts_beside:
        beside = TextOptions.checked(options.pop("text", None), options.pop("missing_text", RAISE))
    classes = None if "classes" in kind.options else options.pop("classes", None)
    try:
        source = kind.open(what, **options)
        source = source if beside.place is None else add_texts_beside(source, beside)
        if kind.open in _CLASS_FOLDERS and classes is None:
            warn_of_classes(source.classes, cure=IN_FOLDERS)
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
    accepts = f"it accepts {', '.join(dict.fromkeys((*kind.options, 'classes', *PART_OPTIONS)))}"
    raise ValueError(f"{kind.name} has no option {unsuited}: {cure_of_option(unsuited, kind.options) or accepts}")


def _open_path(path: bytes, options: dict[str, Any]) -> Source:
    path = pin_url(path) if is_url(path) else path.removeprefix(b"file://")
    if not (is_url(path) or is_pattern(path) or os.path.exists(path)):
        raise LoaderError("E-NODATA", "no such file or folder", fix=cure_of_missing(path), path=path)
    if "index" in options:
        options = {**options, "index": options["index"].of([path])}
    kind, what, find = _find(path, options)
    if kind is None:
        raise _unknown_kind(path, what)
    if find is None:
        return _open_kind(kind, what, options)
    is_checked = not is_url(path) and kind is not _IMAGES  # on_bad_sample handles missing image files
    missing = [each for each in what if not os.path.exists(each)] if is_checked else []
    if missing and len(what) > 1:
        cause = f"{len(missing):,} of the {len(what):,} files of this pattern do not exist; the first is "
        raise LoaderError("E-NODATA", f"{cause}{printable(missing[0])}", fix="check the pattern", path=path)
    return _open_found(kind, what, find, lambda: _open_path(path, options), options)


def _find(path: bytes, options: Mapping[str, Any]) -> tuple[Kind | None, Any, Callable[[], Collection[bytes]] | None]:
    """Return the kind of data at a path or URL, the argument of its `open`, and a function that lists the files again.

    The kind is None if it is unknown. The function is None for a folder or a single file.
    """
    access, index = Access.among(options), options.get("index")
    if is_url(path):
        scheme, _, place = path.partition(b"://")
        if not place or (place.startswith(b"/") and scheme in _HAVE_HOSTS):
            raise ValueError(f"{printable(path)} has no bucket or host: write s3://bucket/folder/, for example")
        if is_url_folder(path):
            place = path.rstrip(b"/")
            found_kind = _INDEXED_FOLDERS.get(index.manifest.kind) if index else _first(URL_FOLDER, place, access)
            return found_kind, place, None
    elif not is_pattern(path):
        folder = _first(FOLDER, path)
        return (_kind_of([path], options), [path], None) if folder is None else (folder, path, None)
    find = partial(_expand, path, access) if index is None or not is_url_pattern(path) else index.objects
    found = find()
    return _kind_of(found, options), found, find


def _first(of: str, *what: object) -> Kind | None:
    return next((kind for kind in KINDS if kind.of == of and kind.is_this(*what)), None)


def _kind_of(paths: Collection[bytes], options: Mapping[str, Any]) -> Kind | None:
    """Return the kind of all files, by their names; None if it is unknown."""
    names = [os.fsdecode(without_query(path)).lower() for path in paths]
    of_files = (kind for kind in KINDS if kind.of == FILES and all(name.endswith(kind.suffixes) for name in names))
    about = next(iter(paths)), options.get("image"), Access.among(options)
    return next((kind for kind in of_files if kind.is_this(*about)), None)


def _open_found(
    kind: Kind,
    found: Collection[bytes],
    find: Callable[[], Collection[bytes]],
    open_again: Callable[[], Source],
    options: dict[str, Any],
) -> Source:
    """Open the files of a pattern. The files are listed again whenever the source is refreshed."""
    source: Any = _open_kind(kind, found if kind is _IMAGES else list(found), options)
    refresh: Callable[[object], Source] | None = getattr(type(source), "refreshed", None)
    if refresh is not None:
        opened = weakref.ref(source)
        source.refreshed = Reopening(lambda: refresh(opened()) if find() == found else open_again())
    return source  # type: ignore[no-any-return]


def _unknown_kind(named: bytes, paths: Collection[bytes]) -> ValueError:
    """Return the error for files of an unknown kind; `named` is the path that the user passed."""
    if cure := cure_by_name(next(iter(paths))):
        return ValueError(f"the format of {printable(named)} is not supported: {cure}")
    if len(paths) > 1 and any(map(os.path.isdir, paths)):
        return ValueError(
            f"{printable(named)} matches folders, but a pattern must match files: pass the folder that "
            "contains the class folders, a pattern of files such as 'photos/*/*.jpg', or a list of folders"
        )
    hint = " (the URL of a folder must end with a slash)" if is_url(named) else ""
    known = ", ".join(f"{kind.name} ({', '.join(kind.suffixes)})" for kind in KINDS if kind.of == FILES)
    return ValueError(f"{printable(named)} is not a source{hint}: pass a folder of images, or {known}")
