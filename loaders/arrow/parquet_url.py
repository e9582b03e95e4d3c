"""Serves the images in Parquet files by URL: row groups are fetched in blocks, ahead of their use."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.arrow.arrow_parquet import ImageGroup, ReadAt
from penstock.loaders.arrow.parquet_source import ParquetSource
from penstock.loaders.labels.labelled import serve_labels
from penstock.loaders.remote.remote_source import REMOTE_OPTIONS, RemoteOptions, RemoteSource, check_remote
from penstock.loaders.sources.contract import Source
from penstock.loaders.sources.range_index import Container, RangeIndex, RangeTable
from penstock.loaders.sources.reopening import Reopening
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
    def traffic(self) -> tuple[int, int]:
        return self._blocks.traffic

    def announce(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to decode the row groups of images `indices` (int64 [n])."""
        groups = dict.fromkeys(self._place(index)[:2] for index in indices.tolist())
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
    return serve_labels(images, images.label_index)


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
