"""The contract of a source, index to encoded image plus label, and how one is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.loaders.array_source import ArraySource
from penstock.loaders.hdf5_cache import is_cache_set, open_cache
from penstock.loaders.image_folder import ImageFolder
from penstock.pipelines.decode import ImagePart, StoredSize, Window
from penstock.pipelines.errors import LoaderError, printable

# Suffix of a file that holds a whole data set -> what opens it, given its path and options.
FILE_SOURCES: dict[str, Callable[..., Source]] = {".h5": open_cache, ".hdf5": open_cache}


@runtime_checkable
class Source(Protocol):
    """Images numbered from 0 in an order of their own that never changes, for one process or many.

    Goes to worker processes by pickle while they are started: what is large must be shared there, not copied. Safe to
    read from several threads.
    """

    @property
    def classes(self) -> tuple[bytes, ...]:
        """Class names, by class number."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of which images and labels these are; a copy of the data set has the same."""
        ...

    @property
    def skipped(self) -> dict[str, int]:
        """Reason -> number of entries that were found and not taken."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """An encoded image, or pixels [h, w, 3] that the caller must not write to. Raises LoaderError with `sample`."""
        ...

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Class numbers (int64) of images `indices` (int64)."""
        ...

    def path(self, index: int) -> bytes:
        """What error texts call image `index`."""
        ...

    def describe(self) -> str:
        """One line for people: images, classes, bytes."""
        ...


@runtime_checkable
class WindowSource(Source, Protocol):
    """A source that can tell an image's size without reading it, and read the part that a crop needs."""

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Say that images `indices` (int64) are read soon, so that storage can begin; returns at once."""
        ...

    def stored_size(self, index: int) -> StoredSize | None:
        """Size and orientation of image `index`; None if only read() can hand it out."""
        ...

    def read_window(self, index: int, window: Window) -> ImagePart:
        """A part of image `index` that holds `window`; raises LoaderError with `sample`."""
        ...


def open_source(spec: str | os.PathLike[str] | tuple[Any, Any] | Source, **options: Any) -> Source:
    """A Source from a folder, a cache (file or set), a pair (images, labels) of arrays, or a Source, returned as it is.

    `options` go to ImageFolder, open_cache or ArraySource. Raises LoaderError E-NODATA for a path that is not there,
    ValueError for a file or an object that no source is made for, TypeError for an option that the source does not
    have.
    """
    if isinstance(spec, (str, bytes, os.PathLike)):
        return _open_path(os.fsencode(spec), options)
    if isinstance(spec, (tuple, list)) and len(spec) == 2:
        return ArraySource(*spec, **options)
    if not isinstance(spec, Source):
        raise ValueError(
            "a source is a folder of images, a pair (images, labels) of arrays, or an object with the methods of "
            f"Source, not {type(spec).__name__}; of a data set in memory pass (dataset.data, dataset.targets), and for "
            "any other map-style dataset use penstock.loaders.DataLoader"
        )
    if options:
        raise TypeError(f"a source that is open takes no options: {', '.join(sorted(options))}")
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
