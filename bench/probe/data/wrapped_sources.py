"""Makes data to measure from a source: its images again and again, a sample of them, or images in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import Data, as_data
from penstock.pipelines.native.rows import ENCODED, NO_NAMES, Names, Rows


def _without_shares(source: Any) -> Any:
    """Return the images of a mixture joined in order: what is measured of them does not depend on it."""
    if getattr(source, "mixture", None) is None:
        return source
    if source.is_joined:
        return Data(source.parts, joined=True)
    return source.with_readers(map(_without_shares, source.parts))


def repeat_source(source: Source, entries: int) -> Data:
    """Return the images of a small source again and again, as a large one.

    Each entry has its own crops and place in the order; all reads soon come from the page cache.
    """
    indices = np.arange(entries) % len(source)
    return as_data(_without_shares(source)).take(indices, f"{entries:,} entries, repeating ")


def each_once(source: Source) -> Source:
    """Return the images of data that repeats them, each once; other data as it is."""
    rows = source.steps[0].rows if isinstance(source, Data) else None
    if rows is None:
        return source
    first = np.unique(rows.array, return_index=True)[1]
    return source if len(first) == len(source) else as_data(source).take(first)


class FetchedSource(Data):
    """Serves the images of a source that fetches them, each from memory after its first time."""

    def __init__(self, source: Source) -> None:
        super().__init__([_without_shares(source)])
        self._held: dict[int, bytes | npt.NDArray[np.uint8]] = {}

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return an encoded image, or pixels of a source joined with it that has those."""
        if index not in self._held:
            self._held[index] = super().read(index)
        return self._held[index]

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Say in `rows` where images `indices` lie in memory; pixels stay ELSEWHERE."""
        kept = [self.read(index) for index in indices.tolist()]
        for row, image in enumerate(kept):
            if isinstance(image, bytes):
                rows["kind"][row], rows["size"][row] = ENCODED, len(image)
                rows["offset"][row] = np.frombuffer(image, np.uint8).ctypes.data
        return NO_NAMES._replace(kept=kept)


def sample_of(source: Source, count: int) -> Data:
    """Return at most `count` images of a source, at equal distances."""
    count = min(count, len(source))
    return as_data(_without_shares(source)).take(np.linspace(0, len(source), count, endpoint=False).astype(np.int64))
