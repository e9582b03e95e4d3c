"""Makes data for measurements from a source: its images repeated, a sample of them, or images in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import Data, as_data
from penstock.pipelines.native.rows import ENCODED, NO_NAMES, Names, Rows


def _without_shares(source: Any) -> Any:
    """Return the images of a mixture joined in order: the measurements do not depend on the shares."""
    if getattr(source, "mixture", None) is None:
        return source
    if source.is_joined:
        return Data(source.parts, joined=True)
    return source.with_readers(map(_without_shares, source.parts))


def repeat_source(source: Source, entries: int) -> Data:
    """Return a large source that repeats the images of a small one.

    Each entry has its own crops and position in the order; soon all reads come from the page cache.
    """
    indices = np.arange(entries) % len(source)
    return as_data(_without_shares(source)).take(indices, f"{entries:,} entries, repeating ")


def each_once(source: Source) -> Source:
    """Return data without its repeated images; data without repetitions is returned unchanged."""
    rows = source.steps[0].rows if isinstance(source, Data) else None
    if rows is None:
        return source
    first = np.unique(rows.array, return_index=True)[1]
    return source if len(first) == len(source) else as_data(source).take(first)


class FetchedSource(Data):
    """Serves the images of a fetching source; after its first read an image comes from memory."""

    def __init__(self, source: Source) -> None:
        super().__init__([_without_shares(source)])
        self._held: dict[int, bytes | npt.NDArray[np.uint8]] = {}

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return an encoded image, or pixels if they come from a joined source of pixels."""
        if index not in self._held:
            self._held[index] = super().read(index)
        return self._held[index]

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the addresses of images `indices` in memory; pixels stay ELSEWHERE."""
        kept = [self.read(index) for index in indices.tolist()]
        for row, image in enumerate(kept):
            if isinstance(image, bytes):
                rows["kind"][row], rows["size"][row] = ENCODED, len(image)
                rows["offset"][row] = np.frombuffer(image, np.uint8).ctypes.data
        return NO_NAMES._replace(kept=kept)


def sample_of(source: Source, count: int) -> Data:
    """Return at most `count` images of a source, evenly spaced."""
    count = min(count, len(source))
    return as_data(_without_shares(source)).take(np.linspace(0, len(source), count, endpoint=False).astype(np.int64))
