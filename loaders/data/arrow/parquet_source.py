"""A source of the images in Parquet files: row groups are decoded whole, and kept within a memory limit."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.arrow.arrow_columns import AUTO, Label, choose_typed, read_features, refuse_other_columns
from penstock.loaders.data.arrow.arrow_labels import ArrowLabels
from penstock.loaders.data.arrow.arrow_package import arrow_errors
from penstock.loaders.data.arrow.arrow_parquet import Footer, ImageGroup, read_column, read_footer, read_group
from penstock.loaders.data.arrow.group_cache import GroupCache
from penstock.loaders.data.arrow.image_rows import no_rows_error
from penstock.loaders.data.files.content_probe import probe_ranges, read_file
from penstock.loaders.data.files.folder_scan import skipped_text
from penstock.loaders.data.files.indexed_source import MAX_FILE_BYTES, describe_images, oversize_error
from penstock.loaders.data.files.left_out import NO_ROW_LABEL, NO_ROW_TEXT, warn_of_left_out
from penstock.loaders.data.labels.collect_texts import RAISE, TextOptions
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.stored_labels import keep_labels, split_classes, take_labels
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.object_stats import is_current
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.remote.path_or_url import absolute, folder_of, join, read_whole
from penstock.loaders.data.samples.columns import ArrayColumn
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.sources.contract import Reopening
from penstock.loaders.data.sources.sample import BySample, out_of_range
from penstock.loaders.system.file_read import mtime_ns, read_error, read_unchanged
from penstock.loaders.system.retries import with_retries
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.checked import checked_int
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.native.rows import ENCODED, NO_NAMES, Names, Rows

CACHE_BYTES = 512 << 20
Item = TypeVar("Item")
Found = TypeVar("Found")
_FILES = 64  # number of files read in parallel at opening
_FEW_PER_GROUP = 4  # below this number of samples read per decoded group, the order counts as random
_SEEN_GROUPS = 32  # number of decoded groups before the check


class ParquetSource(BySample):
    """A source of images in row groups; samples are the rows, file by file, without unlabelled rows.

    Opening reads the footers and the label column. Reading a sample decodes its row group, unless it is kept in memory:
    at most `cache_bytes` per process, and the same amount per thread for the current batch. Pickles only while a
    process is being started, as SharedArray does.

    paths: the files, in the order of the rows. image, label, classes, missing_labels, text, missing_text: as in
    open_arrow_files.
    Raises ValueError for columns, LoaderError E-FORMAT, E-CORRUPT, E-CHANGED, E-NODATA, E-MISSING, E-ACCESS, E-READ,
    E-DEPENDENCY.

    Attributes:
        classes: class names, by class number.
        fingerprint: hex digest of labels, classes, and rows and bytes of the groups.
        content: hex digest that also covers the files' sizes and times.
        skipped: reason -> number of skipped rows.
        num_bytes: uncompressed bytes of all row groups.
        retries: number of reads repeated because of transient failures.
        declares_classes: whether the files list the classes.
        label_index: texts, and labels that are not class numbers, for serve_labels; None if there are none.
    """

    _access: Access = DEFAULT  # of files at URLs

    def __init__(
        self,
        paths: list[bytes],
        *,
        image: str | None = None,
        label: Label = AUTO,
        classes: object = None,
        missing_labels: str = RAISE,
        text: str | None = None,
        missing_text: str = RAISE,
        cache_bytes: int = CACHE_BYTES,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self._cache = GroupCache(checked_int("cache_bytes", cache_bytes, 1))
        self._max_file_bytes = checked_int("max_file_bytes", max_file_bytes, 1)
        paths = list(map(absolute, paths))
        options: dict[str, Any] = {
            "image": image,
            "label": label,
            "classes": classes,
            "missing_labels": missing_labels,
            "text": text,
            "missing_text": missing_text,
            "cache_bytes": cache_bytes,
            "max_file_bytes": max_file_bytes,
        }
        self._reopen = Reopening(functools.partial(type(self), paths, **options))
        footers = self._map(lambda path: read_footer(path, self._access), paths)
        for footer in footers:
            if not footer.group_rows.sum():
                raise no_rows_error(footer.container.name)
        schema = footers[0].schema
        texts = TextOptions.checked(text, missing_text)
        columns = choose_typed(schema, read_features(schema), image, label, paths=False, text=texts)
        for footer in footers:
            refuse_other_columns(columns, footer.schema, footer.container.name)
        self._image, self.declares_classes = columns.image, bool(columns.classes)
        self._groups = _index_groups(footers)
        self._group_starts = np.cumsum(np.concatenate([[0], *(footer.group_rows for footer in footers)]))
        labels = ArrowLabels(columns, classes, missing_labels, texts)
        self._read_labels(footers, labels)
        self._take_rows(labels.rows)
        no_text, of_files = labels.rows.lacks_text, " of all files" * (len(paths) > 1)
        firsts = {NO_ROW_LABEL: np.argmax(labels.rows.left_out & ~no_text), NO_ROW_TEXT: np.argmax(no_text)}
        examples = {reason: f"row {int(row)}{of_files}" for reason, row in firsts.items()}
        warn_of_left_out(self.skipped, examples, printable(paths[0]))
        self.fingerprint, self.content = self._digest(footers)
        self.num_bytes, self.retries = self._groups.header.num_bytes, 0
        self._reads, self._has_warned = 0, False

    def _map(self, function: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
        """Call a function that reads a file for each of `items`, in parallel."""
        with ThreadPoolExecutor(_FILES) as pool:
            return list(pool.map(function, items))

    def _read_labels(self, footers: list[Footer], labels: ArrowLabels) -> None:
        of_files = self._map(
            lambda footer: [read_column(footer, name, self._access) for name in labels.columns], footers
        )
        for footer, columns in zip(footers, of_files, strict=True):
            with arrow_errors(footer.container.name):
                labels.add(columns, footer.container.name)

    def _take_rows(self, rows: LabelRows) -> None:
        """Store labels and places of the labelled rows in shared memory."""
        found, num_rows = rows.finish(), int(self._group_starts[-1])
        kept = np.flatnonzero(np.broadcast_to(~rows.left_out, num_rows))
        no_text = int(rows.lacks_text.sum())
        lost = {NO_ROW_LABEL: num_rows - len(kept) - no_text, NO_ROW_TEXT: no_text}
        self.skipped = {reason: count for reason, count in lost.items() if count}
        if not len(kept):
            fix = "pass label=None if the images have no labels"
            raise LoaderError("E-NODATA", f"no image with a label{skipped_text(self.skipped)}", fix=fix)
        numbers, self.classes, others = split_classes(found, len(kept))
        self.label_index = keep_labels(others) if others else None
        self._labels = ArrayColumn(numbers)
        self._rows = ArrayColumn(kept) if self.skipped else None
        self._block_starts = np.searchsorted(kept, self._group_starts)

    def _digest(self, footers: list[Footer]) -> tuple[str, str]:
        digest = hashlib.blake2b(b"penstock parquet 1", digest_size=32)
        for part in (self._labels.array, *(f.group_rows for f in footers), *(f.group_bytes for f in footers)):
            digest.update(np.ascontiguousarray(part).data)
        digest.update(b"\0".join(self.classes))
        if self._rows is not None:
            digest.update(self._rows.array.data)
        digest.update(self._probe())
        fingerprint = digest.hexdigest()
        digest.update(repr([(f.container.size, f.container.version.number) for f in footers]).encode())  # data may move
        return fingerprint, digest.hexdigest()

    def _probe(self) -> bytes:
        """Return a digest of some bytes of the files: rows have no names that would reveal another order."""

        def read(name: bytes, start: int, count: int) -> bytes:
            if is_url(name):
                return bytes(ObjectStore(self._access).read(name.decode(), start, count).data)
            return read_file(name, start, count)

        names = [each.name for each in self._groups.containers()]
        sizes = self._groups.container_sizes.astype(np.int64)
        try:
            return probe_ranges(names, np.zeros_like(sizes), sizes, read)
        except OSError as error:
            raise read_error(error, names[0]) from error

    def __len__(self) -> int:
        return len(self._labels.array)

    def read(self, index: int) -> bytes:
        """Read the encoded image `index`, decoding its row group if necessary; b"" for a row without an image.

        Raises LoaderError: E-CHANGED, E-MISSING, E-ACCESS, E-READ, E-CORRUPT, E-BOMB; IndexError.
        """
        group, row = self._find(index)
        try:
            decoded = self._decode(group)
            self._judge_order(1)
            values, row = decoded.find(row)
            size = int(values.sizes[row])
            if size > self._max_file_bytes:
                raise oversize_error(size, self._max_file_bytes, index, self.path(index))
            if values.present[row]:
                return bytes(values.bytes_of(row))
            name = values.path_of(row)
            return b"" if name is None else self._read_file(group, name)
        except LoaderError as error:
            raise error.locate(sample=index) from error

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the addresses of images `indices` in decoded row groups; the result keeps the groups.

        A row stays ELSEWHERE if its group cannot be decoded, or if the groups of other rows already fill `cache_bytes`.
        """
        held: list[ImageGroup] = []
        places = [self._find(index) for index in indices.tolist()]
        for group in sorted({group for group, _ in places}):
            if sum(decoded.num_bytes for decoded in held) >= self._cache.limit_bytes:
                break
            try:
                decoded = self._decode(group)
            except LoaderError:  # read() names the sample
                continue
            held.append(decoded)
            for number, (its_group, row) in enumerate(places):
                if its_group == group:
                    rows["offset"][number], rows["size"][number] = decoded.locate(row)
        rows["kind"] = np.where((rows["size"] > 0) & (rows["size"] <= self._max_file_bytes), ENCODED, rows["kind"])
        self._judge_order(int(np.count_nonzero(rows["size"])))
        return NO_NAMES._replace(kept=held)

    def _decode(self, group: int) -> ImageGroup:
        def load() -> ImageGroup:
            return with_retries(lambda: self._read_group(group), self._count_retry)

        return self._cache.get(group, load)

    def _read_group(self, group: int) -> ImageGroup:
        file, number, _ = self._groups.place(group)
        return read_group(self._groups.container(file), number, self._image)

    def _read_file(self, group: int, name: bytes) -> bytes:
        """Read the file named by a row of a group."""
        path = join(folder_of(self._path_of(group)), name)
        if is_url(path):
            return read_whole(path, self._access)
        try:
            status = os.stat(path)
            return with_retries(lambda: read_unchanged(path, status.st_size, mtime_ns(status)), self._count_retry)
        except OSError as error:
            raise read_error(error, path) from error

    def _path_of(self, group: int) -> bytes:
        return self._groups.container(self._groups.place(group)[0]).name

    def _find(self, index: int) -> tuple[int, int]:
        """Return the group of a sample, counted over all files, and the row in it."""
        if not 0 <= index < len(self):
            raise out_of_range(index, len(self))
        row = index if self._rows is None else int(self._rows.array[index])
        group = int(np.searchsorted(self._group_starts, row, "right")) - 1
        return group, row - int(self._group_starts[group])

    def _judge_order(self, reads: int) -> None:
        """Count samples read, and warn once if few samples are read per decoded group."""
        self._reads += reads
        cache, num_groups = self._cache, len(self._groups)
        if self._has_warned or cache.evictions == 0 or cache.loads < _SEEN_GROUPS:
            return
        if self._reads >= cache.loads * min(_FEW_PER_GROUP, len(self) / num_groups / 2):
            return
        self._has_warned = True
        estimate = len(self) * cache.loads // self._reads
        warn_user(
            f"in this order an epoch decodes about {estimate:,} row groups, {num_groups:,} in the order of the files: "
            "pass shuffle='blocks', with Blocks(group=...) or cache_bytes so that the mixed row groups stay in memory, "
            "or build a cache (penstock cache build)"
        )

    def block_sizes(self) -> npt.NDArray[np.int64]:
        """Return the number of samples in each row group, int64, in the order of the samples."""
        return np.diff(self._block_starts).astype(np.int64)

    @property
    def num_kept_blocks(self) -> int:
        """Number of row groups to mix: half of those that fit in `cache_bytes`, since the next ones need room."""
        return max(1, self._cache.limit_bytes * len(self._groups) // max(1, 2 * self.num_bytes))

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._labels.array[indices].astype(np.int64)

    def name(self, index: int) -> bytes:
        """Return the key of image `index`, its row number in its file: b"row 17"."""
        group, row = self._find(index)
        first = group - self._groups.place(group)[1]  # group of its file
        return b"row %d" % (row + self._group_starts[group] - self._group_starts[first])

    def path(self, index: int) -> bytes:
        """Return the name of image `index` in error texts: the file's path, a colon, the row."""
        return self._path_of(self._find(index)[0]) + b":" + self.name(index)

    def refreshed(self) -> ParquetSource:
        """Return this source if its files are unchanged, otherwise a source of their current content."""
        return self if is_current(self._groups, self._access) else self._reopen()

    def describe(self) -> str:
        """Return one line with images, classes, bytes, files, row groups and skipped rows."""
        groups = f"{len(self._groups):,} row groups of {self._groups.num_containers:,} Parquet files"
        return describe_images(self, self.num_bytes, "rows without labels count as one class", groups)

    def _count_retry(self) -> None:
        self.retries += 1


def _index_groups(footers: list[Footer]) -> Samples:
    """Return the row groups as a table: the file of each, its number in the file, its bytes."""
    writer = SamplesWriter()
    for footer in footers:
        file, count = writer.add_container(footer.container), len(footer.group_rows)
        writer.add_samples(np.full(count, file), np.arange(count), footer.group_bytes, [b""] * count)
    take_labels(writer, {}, np.arange(len(writer.keys)))
    return writer.save()
