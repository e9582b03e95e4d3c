"""Serves the images in Parquet files by URL: row groups are fetched in blocks, ahead of their use."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.arrow.arrow_parquet import ImageGroup, ReadAt
from penstock.loaders.data.arrow.group_cache import GroupCache
from penstock.loaders.data.arrow.parquet_source import ParquetSource
from penstock.loaders.data.files.contract import Source
from penstock.loaders.data.files.range_index import RangeIndex, RangeTable
from penstock.loaders.data.files.reopen_source import Reopening
from penstock.loaders.data.labels.labelled import serve_labels
from penstock.loaders.data.remote.fetcher import MAX_REQUEST_BYTES
from penstock.loaders.data.remote.remote_source import (
    REMOTE_OPTIONS,
    RemoteOptions,
    RemoteSource,
    Request,
    check_remote,
)
from penstock.loaders.data.samples.version import Container
from penstock.loaders.system.saved_columns import save_in_memory
from penstock.pipelines.errors import LoaderError

BLOCK_BYTES = 1 << 20  # of a file, that are fetched and kept together; neighbours are joined in one request
_FILES = 64  # whose footers are read side by side
_GROUPS = 8  # that are decoded ahead side by side


class UrlParquetSource(ParquetSource):
    """Read images from row groups of Parquet files by URL, as ParquetSource does.

    A file is a row of blocks, which are fetched and kept as the samples of a RemoteSource are. `announce` begins to
    decode the groups of samples, up to `bytes_ahead` and half of what is kept.

    Args:
        remote: how they are fetched.
        paths, options: as ParquetSource takes them.
    """

    def __init__(self, paths: list[bytes], *, remote: RemoteOptions, **options: Any) -> None:
        super().__init__(paths, **options)
        again = functools.partial(UrlParquetSource, paths, remote=remote, **options)
        self._reopen = Reopening(again)
        self._blocks = _open_blocks(self._containers, remote)
        self._prepare()

    def _prepare(self) -> None:
        sizes = [container.size for container in self._containers]
        self._first_blocks = np.cumsum([0, *(-(-size // BLOCK_BYTES) for size in sizes)]).tolist()
        self._lock, self._ahead = threading.Lock(), dict[tuple[int, int], int]()  # group -> bytes
        self._pool: ThreadPoolExecutor | None = None

    @property
    def has_room(self) -> bool:
        return sum(self._ahead.values()) < min(self._blocks.options.bytes_ahead, self._cache.limit_bytes // 2)

    @property
    def options(self) -> RemoteOptions:
        """How the files are fetched."""
        return self._blocks.options

    def with_options(self, **changes: Any) -> UrlParquetSource:
        """Return a source of the same data that fetches by itself; `changes` are fields of RemoteOptions."""
        apart = copy.copy(self)
        apart._cache = GroupCache(self._cache.limit_bytes)
        apart._blocks = self._blocks.with_options(**changes)
        return apart

    def plan_requests(self, indices: npt.NDArray[np.int64]) -> list[Request]:
        """Return the requests that fetch the row groups of images `indices` (int64 [n]).

        Of images in random order a group serves those at hand, and more the longer it is kept. Where its bytes lie is
        estimated from the groups' sizes.
        """
        kept = self._cache.limit_bytes / max(1, self.num_bytes)
        places, wanted = np.unique([self._find(index)[:2] for index in indices.tolist()], axis=0, return_counts=True)
        planned: list[Request] = []
        for (file, group), count in zip(places.tolist(), wanted.tolist(), strict=True):
            number = int(self._file_groups[file]) + group
            rows = int(self._group_starts[number + 1] - self._group_starts[number])
            images = rows if kept >= 1 else min(rows, count / (1 - kept))
            requests = self._blocks.plan_requests(self._blocks_of(file, group))
            planned += [request._replace(images=images / len(requests)) for request in requests]
        return planned

    def requests_under_way(self, requests: int) -> int:
        """Return how many requests are under way at a time if `requests` may be: few groups are decoded at a time."""
        of_group = -(-self.num_bytes // (len(self._group_bytes) * MAX_REQUEST_BYTES))
        return min(requests, _GROUPS * of_group)

    def _blocks_of(self, file: int, group: int) -> npt.NDArray[np.int64]:
        """Return the blocks of a row group, as if the groups filled the file by their sizes."""
        sizes = self._group_bytes[self._file_groups[file] : self._file_groups[file + 1]]
        ends = np.cumsum(sizes) / max(1, sizes.sum()) * self._containers[file].size
        start, end = int(ends[group - 1]) if group else 0, int(ends[group])
        first, last = start // BLOCK_BYTES, max(start // BLOCK_BYTES + 1, -(-end // BLOCK_BYTES))
        return np.arange(self._first_blocks[file] + first, self._first_blocks[file] + last)

    @property
    def traffic(self) -> tuple[int, int]:
        return self._blocks.traffic

    def announce(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to decode the row groups of images `indices` (int64 [n])."""
        groups = dict.fromkeys(self._find(index)[:2] for index in indices.tolist())
        with self._lock:
            new = [group for group in groups if group not in self._ahead and group not in self._cache]
            if self._pool is None and new:
                self._pool = ThreadPoolExecutor(_GROUPS, "penstock-groups")
            for file, group in new:
                number = int(self._file_groups[file]) + group
                self._ahead[file, group] = int(self._group_bytes[number])
                assert self._pool is not None
                self._pool.submit(self._decode_ahead, file, group)

    def forget(self) -> None:
        """Forget what was announced and not read; groups that are being decoded are kept."""
        with self._lock:
            self._ahead.clear()

    def _decode_ahead(self, file: int, group: int) -> None:
        if (file, group) in self._ahead:
            with contextlib.suppress(LoaderError):  # which whoever reads the group meets again
                super()._decode(file, group)

    def _decode(self, file: int, group: int) -> ImageGroup:
        try:
            return super()._decode(file, group)
        finally:
            with self._lock:
                self._ahead.pop((file, group), None)

    def _map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        with ThreadPoolExecutor(_FILES) as pool:
            return list(pool.map(function, items))

    def _reader(self, file: int) -> ReadAt:
        return functools.partial(self._read_at, file)

    def _read_at(self, file: int, start: int, count: int) -> bytes:
        first, blocks = self._first_blocks[file], self._blocks
        wanted = range(first + start // BLOCK_BYTES, first + -(-(start + count) // BLOCK_BYTES))
        blocks.announce(np.array(wanted, np.int64))
        try:
            data = b"".join(map(blocks.read, wanted))
        except LoaderError as error:
            blocks.forget()  # the others
            path = self._containers[file].name
            raise LoaderError(error.code, error.cause, fix=error.fix, path=path) from None
        return data[start % BLOCK_BYTES :][:count]

    def refreshed(self) -> ParquetSource:
        return self if self._blocks.is_unchanged() else self._reopen()

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_containers", "_lock", "_ahead", "_pool")  # names may hold signatures
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._containers = list(self._blocks.containers())
        self._prepare()


def open_parquet(paths: list[bytes], **options: Any) -> Source:
    """Open Parquet files, or URLs, as one source: `options` of ParquetSource, and of URLs REMOTE_OPTIONS."""
    of_remote = {name: options.pop(name) for name in REMOTE_OPTIONS if name in options}
    remote = check_remote(paths, **of_remote)
    images = ParquetSource(paths, **options) if remote is None else UrlParquetSource(paths, remote=remote, **options)
    return serve_labels(images, images.label_index, has_list=options.get("classes") is not None)


def _open_blocks(containers: list[Container], options: RemoteOptions) -> RemoteSource:
    """Return a source whose samples are the blocks of files by URL."""
    counts = [-(-container.size // BLOCK_BYTES) for container in containers]
    container_of = np.repeat(np.arange(len(containers)), counts)
    starts = np.concatenate([np.arange(count, dtype=np.int64) for count in counts]) * BLOCK_BYTES
    ends = np.array([container.size for container in containers], np.int64)[container_of]
    table = RangeTable(
        kind="Parquet files",
        containers=containers,
        container_of=container_of,
        starts=starts,
        sizes=np.minimum(ends - starts, BLOCK_BYTES),
        labels=np.zeros(len(starts), np.int64),
        keys=[b""] * len(starts),
        classes=[b"block"],
    )
    index = save_in_memory(table.write, RangeIndex)
    return RemoteSource(index, Reopening(), replace(options, max_file_bytes=BLOCK_BYTES))
