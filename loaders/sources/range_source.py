"""Serves samples that lie in containers (tar, Arrow files) as a source: each is read by its offset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.folder_scan import skipped_text
from penstock.loaders.sources.image_files import MAX_FILE_BYTES, located_errors, oversize_error
from penstock.loaders.sources.range_index import Container, RangeIndex
from penstock.loaders.system.file_read import mtime_ns, read_unchanged, with_retries
from penstock.loaders.system.saved_columns import reopen_index
from penstock.pipelines.errors import count_text, size_text
from penstock.pipelines.native.rows import FILE, NO_NAMES, Names, Rows


class RangeSource:
    """Read the samples of an index, one at a time; a container that has changed since is refused at each read.

    Pickles as the name and digest of its index, which each worker maps.

    Args:
        index: where the samples lie.
        reopen: makes this source again from the containers as they are now.
        max_file_bytes: a larger sample is refused before it is read.

    Attributes:
        classes: class names, by class number.
        fingerprint: hex digest that identifies images and labels.
        content: hex digest that also covers the containers' times.
        skipped: reason -> number of entries that were found but skipped.
        num_bytes: bytes of all samples.
        retries: reads that were repeated because of transient failures.
    """

    def __init__(
        self, index: RangeIndex, reopen: Callable[[], RangeSource], max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self._index, self._reopen, self._max_file_bytes = index, reopen, max_file_bytes
        header = index.header
        self.classes, self.fingerprint, self.skipped = index.classes, header.fingerprint, header.skipped
        self.content, self.num_bytes, self.retries = header.content, header.num_bytes, 0

    def __len__(self) -> int:
        return len(self._index)

    def read(self, index: int) -> bytes:
        """Read the encoded image `index`. Transient failures are retried, counted in `retries`.

        Raises LoaderError: E-MISSING, E-CHANGED (size or time of the container differ), E-ACCESS, E-READ, E-BOMB for
        more than max_file_bytes; IndexError.
        """
        path = self.path(index)
        container = self._index.container(int(self._index.container_of[index]))
        start, size = int(self._index.starts[index]), int(self._index.sizes[index])
        if size > self._max_file_bytes:
            raise oversize_error(size, self._max_file_bytes, index, path)
        name, file_size, modified_ns = container
        with located_errors(index, path, self._index.file):
            return with_retries(lambda: read_unchanged(name, file_size, modified_ns, start, size), self._count_retry)

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the places of images `indices`; one larger than max_file_bytes stays ELSEWHERE."""
        names = self._index.locate(indices, rows)
        rows["kind"] = np.where(rows["size"] <= self._max_file_bytes, FILE, rows["kind"])
        return NO_NAMES._replace(names=names)

    def ranges(self, indices: Iterable[int]) -> Iterator[tuple[bytes, int, int]]:
        """Yield where images `indices` lie: path of the container, offset, bytes."""
        for index in indices:
            container = self._index.container(int(self._index.container_of[index]))
            yield container.name, int(self._index.starts[index]), int(self._index.sizes[index])

    def refreshed(self) -> RangeSource:
        """Return this source if its containers are unchanged, otherwise one of their present content."""
        return self if are_unchanged(self._index.containers()) else self._reopen()

    def _count_retry(self) -> None:
        self.retries += 1

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images `indices` (int64)."""
        return self._index.labels[indices].astype(np.int64)

    def name(self, index: int) -> bytes:
        """Return the key of image `index`, which is the same wherever its container lies."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        return self._index.key(index)

    def path(self, index: int) -> bytes:
        """Return what error texts call image `index`: the container's path, a colon, the image's key."""
        name = self.name(index)
        return self._index.container(int(self._index.container_of[index])).name + b":" + name

    def describe(self) -> str:
        """Return one line: images, classes, bytes, containers, what was skipped."""
        images = count_text(len(self), "image")
        classes = count_text(len(self.classes), "class")
        count, kind = self._index.num_containers, self._index.header.kind
        containers = f"{count:,} {kind if count != 1 else kind.removesuffix('s')}"
        return f"{images}, {classes}, {size_text(self.num_bytes)} in {containers}{skipped_text(self.skipped)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self._index.file.paths, self.content, self._reopen, self._max_file_bytes)


def are_unchanged(containers: Iterable[Container]) -> bool:
    """Return whether all containers still have their size and time (2 us each)."""
    try:
        for name, size, modified_ns in containers:
            status = os.stat(name)
            if status.st_size != size or mtime_ns(status) != modified_ns:
                return False
    except OSError:
        return False
    return True


def _attach(
    paths: tuple[bytes, ...], content: str, reopen: Callable[[], RangeSource], max_file_bytes: int
) -> RangeSource:
    index = reopen_index(paths, RangeIndex, lambda found: found.header.content == content)
    return RangeSource(index, reopen, max_file_bytes)
