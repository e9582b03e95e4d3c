"""A source of the images in Parquet files at URLs: row groups are fetched by ranges and decoded ahead of use."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.arrow.arrow_parquet import ImageGroup, read_group
from penstock.loaders.data.arrow.group_cache import GroupCache
from penstock.loaders.data.arrow.parquet_source import ParquetSource
from penstock.loaders.data.labels.labelled import serve_labels
from penstock.loaders.data.remote.fetcher import MAX_REQUEST_BYTES, Range, forgetting
from penstock.loaders.data.remote.object_store import ObjectStore, is_url, warn_of_no_version
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.loaders.data.remote.remote_source import REMOTE_OPTIONS, RemoteOptions, Request, check_reading
from penstock.loaders.data.remote.whole_files import copy_whole
from penstock.loaders.data.samples.version import Container
from penstock.loaders.data.sources.contract import Reopening, Source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.user_warnings import warn_user

_GROUPS = 8  # number of groups decoded ahead in parallel


class UrlParquetSource(ParquetSource):
    """A source of images in row groups of Parquet files at URLs, like ParquetSource.

    Each read of pyarrow is split into parallel requests. `announce` begins to decode the groups of samples, up to
    `bytes_ahead` and half of `cache_bytes`. With `local_cache`, a file is copied whole when its first group is read,
    unless it is beyond the first `local_bytes` of the data.

    Args:
        remote: the options for fetching.
        paths, options: as in ParquetSource.

    Attributes:
        options: the options for fetching.
        store: counts requests, bytes and retries.
    """

    def __init__(self, paths: list[bytes], *, remote: RemoteOptions, **options: Any) -> None:
        self._access = remote
        super().__init__(paths, **options)
        self._reopen = Reopening(functools.partial(UrlParquetSource, paths, remote=remote, **options))
        for container in self._groups.containers():
            if not container.version.is_known:
                warn_of_no_version(container.name)
        self._begin(remote)

    def _begin(self, options: RemoteOptions) -> None:
        self.options, self.store = options, ObjectStore(options)
        self._ends = np.cumsum(self._groups.container_sizes, dtype=np.int64)
        self._room = 0 if options.local_cache is None else options.local_bytes or 1 << 62
        self._lock, self._ahead = threading.Lock(), dict[int, int]()  # group -> bytes
        self._decoders = ThreadPoolExecutor(_GROUPS, "penstock-groups")
        self._fetchers = ThreadPoolExecutor(options.first_requests, "penstock-fetch")
        forgetting.add(self)

    @property
    def has_room(self) -> bool:
        return sum(self._ahead.values()) < min(self.options.bytes_ahead, self._cache.limit_bytes // 2)

    def with_options(self, **changes: Any) -> UrlParquetSource:
        """Return a source of the same data with separate fetching; `changes` are fields of RemoteOptions."""
        apart = copy.copy(self)
        apart._cache = GroupCache(self._cache.limit_bytes)
        apart._begin(replace(self.options, **changes))
        return apart

    def plan_requests(self, indices: npt.NDArray[np.int64]) -> list[Request]:
        """Return the requests that fetch the row groups of images `indices` (int64 [n]).

        With images in random order, a group serves the requested images, and more the longer it is kept. The offsets of
        its bytes are estimated from the groups' sizes.
        """
        kept, files = (
            self._cache.limit_bytes / max(1, self.num_bytes),
            self._groups.container_of(np.arange(len(self._groups))),
        )
        groups, wanted = np.unique([self._find(index)[0] for index in indices.tolist()], return_counts=True)
        planned: list[Request] = []
        for group, count in zip(groups.tolist(), wanted.tolist(), strict=True):
            file, number, _ = self._groups.place(group)
            rows = int(self._group_starts[group + 1] - self._group_starts[group])
            images = rows if kept >= 1 else min(rows, count / (1 - kept))
            name, size, version = self._groups.container(file)
            sizes = self._groups.sizes[files == file]
            ends = np.cumsum(sizes) / max(1, sizes.sum()) * size  # as if the groups filled the file
            start, end = int(ends[number - 1]) if number else 0, max(1, int(ends[number]))
            parts = [Range(group, name.decode(), *part, version) for part in _split(start, max(1, end - start))]
            planned += [Request(self.store, [part], images / len(parts)) for part in parts]
        return planned

    def requests_under_way(self, requests: int) -> int:
        """Return the number of concurrent requests if `requests` are allowed: few groups are decoded in parallel."""
        of_group = -(-self.num_bytes // (len(self._groups) * MAX_REQUEST_BYTES))
        return min(requests, _GROUPS * of_group)

    @property
    def traffic(self) -> tuple[int, int]:
        """Number of requests for row groups answered, and of bytes received."""
        return self.store.requests, self.store.num_bytes

    def announce(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to decode the row groups of images `indices` (int64 [n])."""
        with self._lock:
            for group in dict.fromkeys(self._find(index)[0] for index in indices.tolist()):
                if group not in self._ahead and group not in self._cache:
                    self._ahead[group] = int(self._groups.sizes[group])
                    self._decoders.submit(self._decode_ahead, group)

    def forget(self) -> None:
        """Forget images announced and not read; groups being decoded are kept."""
        with self._lock:
            self._ahead.clear()

    def _decode_ahead(self, group: int) -> None:
        if group in self._ahead:
            with contextlib.suppress(LoaderError):  # reading the group raises it again
                super()._decode(group)

    def _decode(self, group: int) -> ImageGroup:
        try:
            return super()._decode(group)
        finally:
            with self._lock:
                self._ahead.pop(group, None)

    def _read_group(self, group: int) -> ImageGroup:
        file, number, _ = self._groups.place(group)
        container = self._groups.container(file)
        is_copied = container.version.is_known and self._ends[file] <= self._room
        place = self._copy(container) if is_copied else container
        return read_group(place, number, self._image, functools.partial(self._read_at, container), self.options)

    def _copy(self, container: Container) -> Container:
        """Return the local copy of a file; the file itself if there is no room for a copy."""
        try:
            found, never = RemoteObject(container.size, container.version), math.inf
            path = copy_whole(container.name, self.options, found=found, store=self.store, show_after_s=never)
            return Container.of_file(path, os.stat(path))
        except LoaderError as error:
            if error.code != "E-NOSPC":
                raise
            self._room = 0
            warn_user(f"{error.cause}: the Parquet files are read from their URLs, without local_cache")
            return container

    def _read_at(self, container: Container, start: int, count: int) -> bytes:
        name, _, version = container

        def read(part: tuple[int, int]) -> Any:
            return self.store.read(name.decode(), *part, version).data

        return b"".join(self._fetchers.map(read, _split(start, count)))

    def __getstate__(self) -> dict[str, object]:
        left_out = ("_lock", "_ahead", "_decoders", "_fetchers")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin(self.options)


def _split(start: int, count: int) -> list[tuple[int, int]]:
    """Split a range into (start, bytes) of requests."""
    end = start + count
    return [(at, min(MAX_REQUEST_BYTES, end - at)) for at in range(start, end, MAX_REQUEST_BYTES)]


def open_parquet(paths: list[bytes], **options: Any) -> Source:
    """Open Parquet files or URLs as one source; `options` of ParquetSource, and for URLs also REMOTE_OPTIONS."""
    of_remote = {name: options.pop(name) for name in REMOTE_OPTIONS if name in options}
    remote = check_reading(paths, **of_remote)
    are_urls = is_url(paths[0])
    images = UrlParquetSource(paths, remote=remote, **options) if are_urls else ParquetSource(paths, **options)
    has_list = options.get("classes") is not None or images.declares_classes
    return serve_labels(images, images.label_index, has_list=has_list)
