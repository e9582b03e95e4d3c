"""Serves image files as a source: reads them one at a time, as an index says that they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.folder_index import FolderIndex, as_prefix
from penstock.loaders.system.column_file import ColumnFile
from penstock.loaders.system.file_read import read_error, read_unchanged, with_retries
from penstock.loaders.system.saved_columns import drop_index, reopen_index
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.rows import Names, Rows

# An image of 100 megapixels, which is pipelines' limit, takes up to 400 MB uncompressed.
MAX_FILE_BYTES = 512 << 20


class ImageFiles:
    """Read the image files of an index; a file that has changed since is refused.

    Pickles as the name and digest of its index, which each worker maps.

    Attributes:
        root: the folder to which the names of the index are relative.
        classes: class names, by class number.
        fingerprint: hex digest that identifies images and labels.
        content: hex digest that also covers modification times.
        skipped: reason -> number of entries that were found but skipped.
        num_bytes: bytes of all files.
        retries: reads that were repeated because of transient failures.
    """

    def __init__(self, root: bytes, index: FolderIndex, options: dict[str, Any]) -> None:
        self._take(root, index, options)

    def _take(self, root: bytes, index: FolderIndex, options: dict[str, Any]) -> None:
        self.root, self._index, self._options = root, index, options
        self._max_file_bytes: int = options["max_file_bytes"]
        self._prefix = as_prefix(root)
        self._num_files = index.num_files
        self.classes, self.fingerprint, self.skipped = index.classes, index.header.fingerprint, index.header.skipped
        self.content, self.num_bytes = index.header.content, index.header.num_bytes
        self.retries = 0
        self._names: Names | None = None  # the same object each time: the native library looks at it once

    def __len__(self) -> int:
        return self._num_files

    def read(self, index: int) -> bytes:
        """Read the bytes of image `index`; b"" for an empty file. Transient failures are retried, counted in `retries`.

        Raises LoaderError: E-MISSING, E-CHANGED (size or mtime differ from the scan), E-ACCESS, E-READ, E-BOMB for a
        file of more than max_file_bytes; IndexError.
        """
        path = self.path(index)
        size, mtime_ns = self._index.size(index), self._index.mtime_ns(index)
        if size > self._max_file_bytes:
            raise oversize_error(size, self._max_file_bytes, index, path)
        with located_errors(index, path, self._index.file):
            return with_retries(lambda: read_unchanged(path, size, mtime_ns), self._count_retry)

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the files of images `indices`; a file larger than max_file_bytes stays ELSEWHERE."""
        names = self._index.locate(indices, rows, self._max_file_bytes)
        if self._names is None:
            self._names = Names(self._prefix, *names)
        return self._names

    def _count_retry(self) -> None:
        self.retries += 1

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images `indices` (int64)."""
        return self._index.labels(indices)

    def path(self, index: int) -> bytes:
        """Return the absolute path of image `index`. Raises IndexError."""
        if not 0 <= index < self._num_files:
            raise IndexError(f"image {index} of {self._num_files}")
        return self._prefix + self._index.relative_path(index)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self.root, self._index.file.paths, self.content, self._options)


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


def _reopen(
    kind: type[ImageFiles], root: bytes, index_paths: tuple[bytes, ...], content: str, options: dict[str, Any]
) -> ImageFiles:
    """Open the source in another process. Raises LoaderError E-STALE if the index of these files is gone."""
    files = kind.__new__(kind)
    index = reopen_index(index_paths, FolderIndex, lambda found: found.header.content == content)
    files._take(root, index, options)
    return files
