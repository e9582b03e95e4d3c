"""Serves samples that lie in containers (tar, Arrow files) as a source: each is read by its offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.image_files import MAX_FILE_BYTES, IndexedImages
from penstock.loaders.data.files.range_index import RangeIndex
from penstock.loaders.data.samples.version import Container
from penstock.pipelines.native.rows import FILE, NO_NAMES, Names, Rows


class RangeSource(IndexedImages):
    """Read the samples of an index, one at a time, from the containers that hold them.

    Args:
        index: where the samples lie.
        reopen: makes this source again from the containers as they are now.
        max_file_bytes: a larger sample is refused before it is read.
    """

    _index: RangeIndex
    one_class = "samples without labels count as one class"

    def __init__(
        self, index: RangeIndex, reopen: Callable[[], RangeSource], max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self._show(index, max_file_bytes)
        self._reopen = reopen

    def _place(self, index: int) -> tuple[Container, int, int]:
        container = self._index.container(int(self._index.container_of[index]))
        return container, int(self._index.starts[index]), int(self._index.sizes[index])

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the places of images `indices`; one larger than max_file_bytes stays ELSEWHERE."""
        names = self._index.locate(indices, rows)
        rows["kind"] = np.where(rows["size"] <= self._max_file_bytes, FILE, rows["kind"])
        return NO_NAMES._replace(names=names)

    def ranges(self, indices: Iterable[int]) -> Iterator[tuple[bytes, int, int]]:
        """Yield where images `indices` lie: path of the container, offset, bytes."""
        for container, start, size in map(self._place, indices):
            yield container.name, start, size

    def refreshed(self) -> RangeSource:
        """Return this source if its containers are unchanged, otherwise one of their present content."""
        return self if self._index.has_same_files() else self._reopen()

    def name(self, index: int) -> bytes:
        """Return the key of image `index`, which is the same wherever its container lies."""
        self._check_index(index)
        return self._index.key(index)

    def path(self, index: int) -> bytes:
        """Return what error texts call image `index`: the container's path, a colon, the image's key."""
        name = self.name(index)
        return self._place(index)[0].name + b":" + name

    def describe(self, where: str = "") -> str:
        """Return one line: images, classes, bytes, containers, what was skipped."""
        count, kind = self._index.num_containers, self._index.header.kind
        return super().describe(where or f" in {count:,} {kind if count != 1 else kind.removesuffix('s')}")

    def __reduce__(self) -> tuple[Any, ...]:
        return RangeSource, (self._index, self._reopen, self._max_file_bytes)
