"""Defines sources that serve the images of another source: again and again, a sample of them, or from memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.contract import Source
from penstock.loaders.data.files.view import Index, View
from penstock.loaders.data.views.subset import Subset
from penstock.pipelines.native.rows import ENCODED, NO_NAMES, Names, Rows


class WithoutShares(View):
    """Serves the images of a mixture without its shares: what is measured of them does not depend on their order."""

    keeps_order = True
    mixture = None

    def __init__(self, source: Source) -> None:
        super().__init__(source, len(source), "without shares")


def _without_shares(source: Source) -> Source:
    return source if getattr(source, "mixture", None) is None else WithoutShares(source)


class RepeatedSource(View):
    """Serves the images of a small source again and again, as a large one.

    Each entry has its own crops and place in the order; all reads soon come from the page cache.
    """

    def __init__(self, source: Source, entries: int) -> None:
        super().__init__(_without_shares(source), entries, f"x {entries}")
        self._count = len(source)

    def _at(self, index: Index) -> Index:
        return index % self._count

    def describe(self) -> str:
        """Describe the data in one line."""
        return f"{len(self):,} entries, repeating {self.source.describe()}"


class FetchedSource(View):
    """Serves the images of a source that fetches them, each from memory after its first time."""

    def __init__(self, source: Source) -> None:
        super().__init__(_without_shares(source), len(source), "fetched")
        self._held: dict[int, bytes | npt.NDArray[np.uint8]] = {}

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return an encoded image, or pixels of a source joined with it that has those."""
        if index not in self._held:
            self._held[index] = self.source.read(index)
        return self._held[index]

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Say in `rows` where images `indices` lie in memory; pixels stay ELSEWHERE."""
        kept = [self.read(index) for index in indices.tolist()]
        for row, image in enumerate(kept):
            if isinstance(image, bytes):
                rows["kind"][row], rows["size"][row] = ENCODED, len(image)
                rows["offset"][row] = np.frombuffer(image, np.uint8).ctypes.data
        return NO_NAMES._replace(kept=kept)


def sample_of(source: Source, count: int) -> Subset:
    """Return at most `count` images of a source, at equal distances."""
    count = min(count, len(source))
    return Subset(_without_shares(source), np.linspace(0, len(source), count, endpoint=False).astype(np.int64))
