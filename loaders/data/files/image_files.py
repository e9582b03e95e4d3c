"""Serves images that an index locates as a source: reads them one at a time, from files that must be unchanged."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.folder_index import FolderIndex, as_prefix
from penstock.loaders.data.files.folder_scan import FLAT_CLASS, skipped_text
from penstock.loaders.data.files.range_index import RangeIndex
from penstock.loaders.data.samples.version import Container, Version
from penstock.loaders.system.column_file import ColumnFile
from penstock.loaders.system.file_read import read_error, read_unchanged, with_retries
from penstock.loaders.system.saved_columns import drop_index
from penstock.pipelines.errors import LoaderError, count_text, size_text
from penstock.pipelines.native.rows import Names, Rows

# An image of 100 megapixels, which is pipelines' limit, takes up to 400 MB uncompressed.
MAX_FILE_BYTES = 512 << 20


class IndexedImages(ABC):
    """Read images from where an index says that they are; a file that has changed since is refused.

    Attributes:
        classes: class names, by class number.
        fingerprint: hex digest that identifies images and labels.
        content: hex digest that also covers the times of files.
        skipped: reason -> number of entries that were found but skipped.
        num_bytes: bytes of all images.
        retries: reads that were repeated because of transient failures.
    """

    one_class = ""  # why all images are of one, in words
    _index: FolderIndex | RangeIndex

    def _show(self, index: FolderIndex | RangeIndex, max_file_bytes: int) -> None:
        """Serve the images of an index; one larger than `max_file_bytes` is refused before it is read."""
        self._index, self._max_file_bytes, header = index, max_file_bytes, index.header
        self.classes, self.fingerprint, self.skipped = index.classes, header.fingerprint, header.skipped
        self.content, self.num_bytes, self.retries = header.content, header.num_bytes, 0

    def __len__(self) -> int:
        return len(self._index)

    def read(self, index: int) -> bytes:
        """Read the encoded image `index`; b"" for an empty file. Transient failures are retried, counted in `retries`.

        Raises LoaderError: E-MISSING, E-CHANGED (size or time of the file differ from the index), E-ACCESS, E-READ,
        E-BOMB for more than max_file_bytes; IndexError.
        """
        path = self.path(index)
        (name, file_size, version), start, size = self._place(index)
        if size > self._max_file_bytes:
            raise oversize_error(size, self._max_file_bytes, index, path)
        with located_errors(index, path, self._index.file):
            return with_retries(lambda: read_unchanged(name, file_size, version.number, start, size), self._count_retry)

    def _place(self, index: int) -> tuple[Container, int, int]:
        """Return the file of image `index`, where in it the image begins, and its bytes."""
        raise NotImplementedError

    @abstractmethod
    def path(self, index: int) -> bytes:
        """Return what error texts call image `index`. Raises IndexError."""

    def describe(self, where: str = "") -> str:
        """Return one line: images, classes, bytes, `where` they are, what was skipped."""
        images, classes = count_text(len(self), "image"), count_text(len(self.classes), "class")
        if self.classes == (FLAT_CLASS,):
            classes += f" ({self.one_class})"
        return f"{images}, {classes}, {size_text(self.num_bytes)}{where}{skipped_text(self.skipped)}"

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")

    def _count_retry(self) -> None:
        self.retries += 1

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._index.labels_of(indices)


class ImageFiles(IndexedImages):
    """Read the image files of an index.

    Attributes:
        root: the folder to which the names of the index are relative.
    """

    _index: FolderIndex

    def __init__(self, root: bytes, index: FolderIndex, options: dict[str, Any]) -> None:
        self._take(root, index, options)

    def _take(self, root: bytes, index: FolderIndex, options: dict[str, Any]) -> None:
        self._show(index, options["max_file_bytes"])
        self.root, self._options, self._prefix = root, options, as_prefix(root)
        self._names: Names | None = None  # the same object each time: the native library looks at it once

    def _place(self, index: int) -> tuple[Container, int, int]:
        size = self._index.size(index)
        return Container(self.path(index), size, Version(self._index.mtime_ns(index))), 0, size

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the files of images `indices`; a file larger than max_file_bytes stays ELSEWHERE."""
        names = self._index.locate(indices, rows, self._max_file_bytes)
        if self._names is None:
            self._names = Names(self._prefix, *names)
        return self._names

    def path(self, index: int) -> bytes:
        """Return the absolute path of image `index`. Raises IndexError."""
        self._check_index(index)
        return self._prefix + self._index.relative_path(index)

    def __reduce__(self) -> tuple[Any, ...]:
        return _take, (type(self), self.root, self._index, self._options)


@contextlib.contextmanager
def located_errors(sample: int, path: bytes, index: ColumnFile) -> Iterator[None]:
    """Turn what a read of an indexed sample raises into LoaderErrors with its place; drop an index that is outdated."""
    try:
        yield
    except OSError as error:
        raise read_error(error, path).locate(sample=sample) from error
    except LoaderError as error:
        drop_index(index)
        raise error.locate(sample=sample) from None


def oversize_error(size: int, limit: int, sample: int, path: bytes) -> LoaderError:
    """Return the error of an encoded image that is too large to be one."""
    cause = f"the file has {size:,} bytes, more than max_file_bytes={limit:,}"
    fix = f"open_source(folder, max_file_bytes={size}) if it is an image, or remove the file"
    return LoaderError("E-BOMB", cause, fix=fix, sample=sample, path=path)


def _take(kind: type[ImageFiles], root: bytes, index: FolderIndex, options: dict[str, Any]) -> ImageFiles:
    """Make the source in another process, which does not look at the folder."""
    files = kind.__new__(kind)
    files._take(root, index, options)
    return files
