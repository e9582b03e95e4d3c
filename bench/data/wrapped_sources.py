"""Defines sources that serve the images of another source: again and again, or only a sample of them."""

from __future__ import annotations

import hashlib
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from penstock.loaders.engine.native_rows import is_located
from penstock.loaders.sources.contract import LocatedSource, Source, WindowSource
from penstock.pipelines.image_types import ImagePart, StoredSize, Window
from penstock.pipelines.native.rows import Names, Rows

Index = TypeVar("Index", int, npt.NDArray[np.int64])


class WrappedSource:
    """Serve the images of another source; subclasses override `_at`, which maps an index to one of its images.

    Attributes:
        source: the wrapped source.
        classes, skipped: those of `source`.
        fingerprint: hex digest of that of `source` and of how it is wrapped.
        locates: whether `source` says where its images lie.
    """

    def __init__(self, source: Source, num_images: int, wrapping: str) -> None:
        """Serve `num_images` of `source`. wrapping: words for how, which go into the fingerprint."""
        self.source, self._num_images = source, num_images
        self.classes, self.skipped = source.classes, source.skipped
        self.fingerprint = hashlib.blake2b(f"{source.fingerprint} {wrapping}".encode(), digest_size=32).hexdigest()
        self.locates = is_located(source)

    def _at(self, index: Index) -> Index:
        """Return the wrapped source's index of image `index`; for an int64 array, of each of its elements."""
        return index

    def __len__(self) -> int:
        return self._num_images

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return an encoded image, or pixels uint8 [height, width, 3]."""
        return self.source.read(self._at(index))

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Say in `rows` where images `indices` lie, for the native library."""
        assert isinstance(self.source, LocatedSource)
        return self.source.locate(self._at(indices), rows)

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images `indices`."""
        return self.source.labels(self._at(indices))

    def path(self, index: int) -> bytes:
        """Return what error texts call image `index`."""
        return self.source.path(self._at(index))

    def describe(self) -> str:
        """Describe the data in one line."""
        return self.source.describe()


class RepeatedSource(WrappedSource):
    """Serves the images of a small source again and again, as a large one.

    Each entry has its own crops and place in the order; all reads soon come from the page cache.
    """

    def __init__(self, source: Source, entries: int) -> None:
        if entries < 1:
            raise ValueError(f"entries must be at least 1, got {entries}")
        super().__init__(source, entries, f"x {entries}")
        self._count = len(source)

    def _at(self, index: Index) -> Index:
        return index % self._count

    def describe(self) -> str:
        """Describe the data in one line."""
        return f"{len(self):,} entries, repeating {self.source.describe()}"


class RepeatedWindows(RepeatedSource):
    """Serves a small cache again and again: its images can be read in part."""

    locate = RepeatedSource.locate  # of the images whose windows it reads; see is_located

    def __init__(self, source: WindowSource, entries: int) -> None:
        super().__init__(source, entries)
        self._windows = source

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Say that images `indices` are read soon."""
        self._windows.will_need(self._at(indices))

    def stored_size(self, index: int) -> StoredSize | None:
        """Return size and orientation of image `index`; None if only read() can hand it out."""
        return self._windows.stored_size(self._at(index))

    def read_window(self, index: int, window: Window) -> ImagePart:
        """Return the part of image `index` that holds `window`."""
        return self._windows.read_window(self._at(index), window)


def repeat_source(source: Source, entries: int) -> RepeatedSource:
    """Return `source` as `entries` images. Raises ValueError for fewer than one."""
    return RepeatedWindows(source, entries) if isinstance(source, WindowSource) else RepeatedSource(source, entries)


class SampledSource(WrappedSource):
    """Serves at most `count` images of a source, at equal distances."""

    def __init__(self, source: Source, count: int) -> None:
        if count < 1:
            raise ValueError(f"a sample needs at least 1 image, got {count}")
        count = min(count, len(source))
        super().__init__(source, count, f"/ {count}")
        self._indices = np.linspace(0, len(source), count, endpoint=False).astype(np.int64)

    def _at(self, index: Index) -> Index:
        found: Index = self._indices[index]
        return int(found) if isinstance(index, int) else found

    def describe(self) -> str:
        """Describe the data in one line."""
        return f"a sample of {len(self):,} of {self.source.describe()}"
