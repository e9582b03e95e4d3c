"""A source of indexed samples, read one at a time from files that must be unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.folder_scan import skipped_text
from penstock.loaders.data.samples.file_stats import is_unchanged
from penstock.loaders.data.samples.samples import Samples, as_prefix
from penstock.loaders.data.samples.version import MISSING
from penstock.loaders.data.sources.contract import ONE_CLASS, Reopening, Source
from penstock.loaders.data.sources.sample import BySample, out_of_range
from penstock.loaders.system.file_read import read_error, read_unchanged
from penstock.loaders.system.retries import with_retries
from penstock.loaders.system.saved_columns import drop_index
from penstock.pipelines.errors import LoaderError, count_text, size_text
from penstock.pipelines.native.rows import Names, Rows

# An image of 100 megapixels, the limit of pipelines, takes up to 400 MB uncompressed.
MAX_FILE_BYTES = 512 << 20


class IndexedSource(BySample):
    """A source of samples at the places in an index; a file that has changed since is refused.

    Pickles as the name and digest of its index, which each worker maps.

    Args:
        samples: the index.
        max_file_bytes: a larger sample is refused before it is read.
        reopen: makes this source again from the current data, with a new scan of files if `rescan`; not in a worker.
        is_listed: whether the samples come from a table or listing, so that only reopening shows a change.
        root: replaces the folder that was indexed.
        base: folder to which names of samples are relative; None for names that are whole paths.
        one_class: why all samples are in one class, in words.
        index_place: where the index is kept, if it was read from a bucket or a folder.

    Attributes:
        classes: class names, by class number.
        fingerprint: hex digest that identifies samples and labels.
        content: hex digest that also covers the versions of containers.
        skipped: reason -> number of entries that were found but skipped.
        num_bytes: bytes of all samples.
        retries: number of reads repeated because of transient failures.
        root: the folder of the containers; the attribute is missing if they have none.
    """

    root: bytes

    def __init__(
        self,
        samples: Samples,
        max_file_bytes: int = MAX_FILE_BYTES,
        reopen: Callable[..., IndexedSource] | None = None,
        *,
        is_listed: bool = False,
        root: bytes | None = None,
        base: bytes | None = None,
        one_class: str = "samples without labels count as one class",
        index_place: bytes | None = None,
    ) -> None:
        self.samples, header = samples if root is None else samples.at(root), samples.header
        self._max_file_bytes = max_file_bytes
        self._reopen: Callable[..., IndexedSource] = reopen or Reopening()
        self._about: dict[str, Any] = {"is_listed": is_listed, "root": root, "base": base, "one_class": one_class}
        self._about["index_place"] = index_place
        self.classes, self.fingerprint, self.skipped = samples.classes, header.fingerprint, header.skipped
        self.content, self.num_bytes, self.retries = header.content, header.num_bytes, 0
        if samples.has_folders:
            self.root = self.samples.root
        self._names = self.samples.names()  # the same object each time: the native library examines it only once

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> bytes:
        """Read the encoded image `index`; b"" for an empty file. Retries transient failures, counted in `retries`.

        Raises LoaderError: E-MISSING, E-CHANGED (size or time of the file differ from the index), E-ACCESS, E-READ,
        E-BOMB for more than max_file_bytes; IndexError.
        """
        path = self.path(index)
        number, start, size = self.samples.place(index)
        name, file_size, version = self.samples.container(number)
        if not self.samples.has_ranges:
            name = path  # a subclass may have another path to the same files
        if size > self._max_file_bytes:
            raise oversize_error(size, self._max_file_bytes, index, path)
        try:
            return with_retries(lambda: read_unchanged(name, file_size, version.number, start, size), self._count_retry)
        except OSError as error:
            raise read_error(error, path).locate(sample=index) from error
        except LoaderError as error:  # the index is outdated
            drop_index(self.samples.file)
            raise error.locate(sample=index) from None

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the places of images `indices`; images over max_file_bytes stay ELSEWHERE."""
        self.samples.locate(indices, rows, self._max_file_bytes)
        return self._names

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.samples.labels_of(indices)

    def path(self, index: int) -> bytes:
        """Return the name of image `index` in error texts: the path of its container, with its key after a colon."""
        if not 0 <= index < len(self):
            raise out_of_range(index, len(self))
        samples = self.samples
        path = samples.prefix + samples.container_name(samples.place(index)[0])
        return path + b":" + samples.key(index) if samples.has_ranges else path

    def name(self, index: int) -> bytes:
        """Return a name of image `index` that moves with the data set: its key, or its path relative to the base."""
        path = self.path(index)
        return self.samples.key(index) if self.samples.has_ranges else self._below_base(path)

    def _below_base(self, path: bytes) -> bytes:
        base: bytes | None = self._about["base"]
        return path if base is None else path.removeprefix(as_prefix(base))

    def ranges(self, indices: Iterable[int]) -> Iterator[tuple[bytes, int, int]]:
        """Yield the places of images `indices`: path of the container, offset, bytes."""
        for number, start, size in map(self.samples.place, indices):
            yield self.samples.container(number).name, start, size

    def count_missing(self, indices: npt.NDArray[np.int64]) -> int:
        """Count the images `indices` (int64 [n]) with files that were missing when they were indexed."""
        return int(np.count_nonzero(self.samples.versions[self.samples.container_of(indices)] == MISSING.number))

    def is_unchanged(self) -> bool:
        """Return whether all containers are unchanged since they were indexed.

        Opening compares only a sample of many files, because each is compared again when it is read. This check
        compares all, because a cache is read instead of the files.
        """
        return is_unchanged(self.samples)

    def refreshed(self) -> IndexedSource:
        """Return this source if the data is unchanged, otherwise a source of the current data."""
        is_listed = self._about["is_listed"]
        is_kept = self.samples.is_saved and self.samples.header.made_by != ""
        is_same = (is_kept or not is_listed) and self.is_unchanged()  # else all is looked up again
        if is_same and not is_listed:
            return self
        again = self._reopen(rescan=not is_same)
        return self if again.content == self.content else again

    def describe(self) -> str:
        """Return one line with images, classes, bytes, containers and skipped entries."""
        kind, count = self.samples.header.kind, self.samples.num_containers
        where = f"{count:,} {kind if count != 1 else kind.removesuffix('s')}" if kind else ""
        return describe_images(self, self.num_bytes, self._about["one_class"], where)

    def _count_retry(self) -> None:
        self.retries += 1

    def __reduce__(self) -> tuple[object, ...]:
        return _make_again, (type(self), self.samples, self._max_file_bytes, self._about)


def _make_again(kind: type[IndexedSource], samples: Samples, limit: int, about: dict[str, Any]) -> IndexedSource:
    """Make the source in another process without checking the data; subclasses `kind` may read differently."""
    source = kind.__new__(kind)
    IndexedSource.__init__(source, samples, limit, **about)
    return source


def describe_images(source: Source, num_bytes: int, one_class: str, where: str = "") -> str:
    """Return one line with images, classes, bytes, place (`where`) and skipped entries.

    one_class: why all images are in one class, in words.
    """
    images, classes = count_text(len(source), "image"), count_text(len(source.classes), "class")
    if source.classes == (ONE_CLASS,):
        classes += f" ({one_class})"
    return f"{images}, {classes}, {size_text(num_bytes)}{where and f' in {where}'}{skipped_text(source.skipped)}"


def oversize_error(size: int, limit: int, sample: int, path: bytes) -> LoaderError:
    """Return the error for an encoded image that is too large."""
    cause = f"the file has {size:,} bytes, more than max_file_bytes={limit:,}"
    fix = f"open_source(folder, max_file_bytes={size}) if it is an image, or remove the file"
    return LoaderError("E-BOMB", cause, fix=fix, sample=sample, path=path)
