"""Defines sources that serve the images of another source: again and again, or only a sample of them."""

from __future__ import annotations

import numpy as np

from penstock.loaders.sources.contract import Source
from penstock.loaders.sources.view import Index, View


class RepeatedSource(View):
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


class SampledSource(View):
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
