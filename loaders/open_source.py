"""Opens data of any kind: a folder, a cache, a pair of arrays, or a source."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from penstock.loaders.cache.hdf5_cache import is_cache_set, open_cache
from penstock.loaders.sources.arrays import ArraySource
from penstock.loaders.sources.contract import Source
from penstock.loaders.sources.image_folder import ImageFolder
from penstock.pipelines.errors import LoaderError, printable

# Suffix of a file that holds a whole data set -> function that opens it, given its path and options.
FILE_SOURCES: dict[str, Callable[..., Source]] = {".h5": open_cache, ".hdf5": open_cache}


def open_source(spec: str | os.PathLike[str] | tuple[Any, Any] | Source, **options: Any) -> Source:
    """Open a folder, a cache (file or set) or a pair (images, labels) of arrays; return a Source unchanged.

    `options` go to ImageFolder, open_cache or ArraySource. Raises LoaderError E-NODATA for a missing path, ValueError
    for an unsupported file or object, TypeError for an option that the source does not have.
    """
    if isinstance(spec, (str, bytes, os.PathLike)):
        return _open_path(os.fsencode(spec), options)
    if isinstance(spec, (tuple, list)) and len(spec) == 2:
        return ArraySource(*spec, **options)
    if not isinstance(spec, Source):
        raise ValueError(
            "a source must be a folder of images, a pair (images, labels) of arrays, or an object with the methods of "
            f"Source, got {type(spec).__name__}; for a data set in memory pass (dataset.data, dataset.targets), for "
            "any other map-style data set use penstock.loaders.DataLoader"
        )
    if options:
        raise TypeError(f"an open source takes no options, got {', '.join(sorted(options))}")
    return spec


def _open_path(path: bytes, options: dict[str, Any]) -> Source:
    if is_cache_set(path):
        return open_cache(path, **options)
    if os.path.isdir(path):
        return ImageFolder(path, **options)
    if not os.path.exists(path):
        raise LoaderError("E-NODATA", "no such file or folder", path=path)
    suffix = os.fsdecode(os.path.splitext(path)[1]).lower()
    if suffix not in FILE_SOURCES:
        kinds = ", ".join(["a folder of images", *(f"a {known} file" for known in sorted(FILE_SOURCES))])
        raise ValueError(f"{printable(path)} is not a source: pass {kinds}")
    return FILE_SOURCES[suffix](path, **options)
