"""A small data set served as a large one, for measuring without one."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import Source, WindowSource
from penstock.pipelines.image_types import ImagePart, StoredSize, Window


class RepeatedSource:
    """`entries` images, which are those of `source` again and again. See Source for the methods.

    Each entry has its own crops and place in the order; all its reads come from the page cache soon.
    """

    def __init__(self, source: Source, entries: int) -> None:
        if entries < 1:
            raise ValueError(f"entries is at least 1, not {entries}")
        self.source, self._entries, self._count = source, entries, len(source)
        self.classes, self.skipped = source.classes, source.skipped
        self.fingerprint = hashlib.blake2b(f"{source.fingerprint} x {entries}".encode(), digest_size=32).hexdigest()

    def __len__(self) -> int:
        return self._entries

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """See Source."""
        return self.source.read(index % self._count)

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See Source."""
        return self.source.labels(indices % self._count)

    def path(self, index: int) -> bytes:
        """See Source."""
        return self.source.path(index % self._count)

    def describe(self) -> str:
        """See Source."""
        return f"{self._entries:,} entries, repeating {self.source.describe()}"


class RepeatedWindows(RepeatedSource):
    """The same of a source that hands out windows; see WindowSource."""

    def __init__(self, source: WindowSource, entries: int) -> None:
        super().__init__(source, entries)
        self._windows = source

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """See WindowSource."""
        self._windows.will_need(indices % self._count)

    def stored_size(self, index: int) -> StoredSize | None:
        """See WindowSource."""
        return self._windows.stored_size(index % self._count)

    def read_window(self, index: int, window: Window) -> ImagePart:
        """See WindowSource."""
        return self._windows.read_window(index % self._count, window)


def repeated(source: Source, entries: int) -> RepeatedSource:
    """`source` as `entries` images. Raises ValueError for fewer than one."""
    return RepeatedWindows(source, entries) if isinstance(source, WindowSource) else RepeatedSource(source, entries)
