"""A source of samples in remote containers, fetched ahead of use, served from memory or from a local copy."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.indexed_source import MAX_FILE_BYTES, IndexedSource, oversize_error
from penstock.loaders.data.files.path_patterns import AnyPath
from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.remote.fetcher import Fetcher, Range, join_neighbours
from penstock.loaders.data.remote.local_copy import LocalCopy
from penstock.loaders.data.remote.object_stats import is_current
from penstock.loaders.data.remote.object_store import ObjectStore, is_url, warn_of_no_version
from penstock.loaders.data.remote.path_or_url import HTTP, without_key
from penstock.loaders.data.remote.pinned_urls import without_commit
from penstock.loaders.data.requests.pace import MOST_REQUESTS, Pace
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.version import Version
from penstock.loaders.system.saved_columns import drop_index
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.checked import checked_int
from penstock.pipelines.native.rows import ENCODED, NO_NAMES, STORED, Names, Rows


@dataclass(frozen=True, kw_only=True)
class RemoteOptions(Access):
    """Options for reading data and for fetching remote data.

    Attributes:
        requests: maximum number of concurrent requests per process; by default as many as raise the throughput.
        bytes_ahead: number of bytes that may be fetched before they are needed, per process.
        local_cache: folder for a copy of fetched data, shared by the processes of a machine; None for no copy.
        local_bytes: approximate limit of the copy in bytes; by default the size of the data.
        max_file_bytes: a larger sample is refused before it is fetched.
    """

    requests: int | None = None
    bytes_ahead: int = 256 << 20
    local_cache: AnyPath | None = None
    local_bytes: int | None = None
    max_file_bytes: int = MAX_FILE_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("requests", "local_bytes", "bytes_ahead", "max_file_bytes"):
            if getattr(self, name) is not None or name in ("bytes_ahead", "max_file_bytes"):
                checked_int(name, getattr(self, name), 1)

    @property
    def first_requests(self) -> int:
        """Number of concurrent requests before their answers have taught a better one."""
        return self.requests or FIRST_REQUESTS

    def make_pace(self) -> Pace:
        """Return a pace for the requests of a process."""
        return Pace(self.first_requests, self.bytes_ahead, self.requests or MOST_REQUESTS)


class Request(NamedTuple):
    """A request of a remote source.

    Attributes:
        store: the store that makes it.
        ranges: ranges of one object, in their order.
        images: average number of images per request.
    """

    store: ObjectStore
    ranges: list[Range]
    images: float


FIRST_REQUESTS = 64
_MOST_OBJECTS = 4096  # whose URL and version are kept
REMOTE_OPTIONS = (
    "requests",
    "bytes_ahead",
    "local_cache",
    "local_bytes",
    "retry_s",
    "headers",
)  # passed on by create_loader


def check_reading(paths: Collection[bytes], **reading: Any) -> RemoteOptions:
    """Return the options for reading containers (files or URLs); `reading` are fields of RemoteOptions.

    None means that one of REMOTE_OPTIONS was not given. Raises ValueError if they are given for files; TypeError.
    """
    given = {name: value for name, value in reading.items() if value is not None or name not in REMOTE_OPTIONS}
    options = RemoteOptions(**given)
    num_urls = sum(map(is_url, paths))
    if num_urls not in (0, len(paths)):
        raise ValueError(f"either all paths must be URLs or none, got {num_urls:,} of {len(paths):,}")
    if not num_urls and (unsuited := [name for name in given if name in REMOTE_OPTIONS]):
        raise ValueError(f"{', '.join(unsuited)} can only be used for data at URLs")
    if options.headers and not any(path.lower().startswith(HTTP) for path in paths):
        raise ValueError("headers can only be used for data at URLs of HTTP")
    return options


def _name_copy(samples: Samples) -> bytes:
    """Return the folder name of the local copy of samples.

    It includes the addresses, because versions only distinguish states of one address: on many web servers a version is
    a file's time and size. Keys in addresses and commits are left out: they change while the data does not.
    """
    digest = hashlib.blake2b(samples.header.content.encode("ascii"), digest_size=16)
    numbers = () if samples.has_folders else range(samples.num_containers)
    places = (samples.prefix + samples.container_name(number) for number in numbers)
    for place in [samples.root] if samples.has_folders else places:
        digest.update(without_commit(without_key(place)) + b"\0")
    return digest.hexdigest().encode("ascii")


class _Ranges:
    """Finds the ranges of samples, and keeps URL and version of containers with many samples."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._objects = dict[int, tuple[str, Version]]()  # by number of the container

    def find(self, index: int) -> Range:
        """Return the range of sample `index`."""
        number, start, size = self._samples.place(index)
        known = self._objects.get(number)
        if known is None:
            container = self._samples.container(number)
            known = container.name.decode(), container.version
            if len(self._objects) >= _MOST_OBJECTS:
                self._objects.clear()
            if self._samples.has_ranges:
                self._objects[number] = known
        return Range(index, known[0], start, size, known[1])


class RemoteSource(IndexedSource):
    """A source of indexed samples in containers at URLs.

    `announce` begins to fetch samples; `locate` and `read` wait for them. A container that was replaced since it was
    indexed is refused (E-CHANGED).

    Attributes:
        options: the options for fetching.
        store: counts requests, bytes and retries.
        local: the local copy, if there is one.
    """

    def __init__(
        self, samples: Samples, options: RemoteOptions, reopen: Callable[..., IndexedSource] | None = None, **about: Any
    ) -> None:
        super().__init__(samples, options.max_file_bytes, reopen, **about)
        samples = self.samples
        if samples.has_folders:
            self.root = without_key(samples.root)
        self.options, self.store = options, ObjectStore(options)
        self.local: LocalCopy | None = None
        unknown = samples.find_unknown()
        if unknown is not None:
            warn_of_no_version(samples.container(unknown).name)
        elif options.local_cache is not None:
            folder = os.path.join(os.fsencode(options.local_cache), _name_copy(samples))
            self.local = LocalCopy(folder, samples, options.local_bytes or 1 << 62)
        self._ranges = _Ranges(samples)
        self._fetcher = Fetcher(self.store, self._ranges.find, options.make_pace(), options.bytes_ahead, self.local)
        # Bytes that locate() has returned, by sample, as long as its caller has them.
        self._located: dict[int, weakref.ref[memoryview]] = {}
        self._failed: dict[int, LoaderError] = {}  # errors in locate(), raised by read()

    @property
    def has_room(self) -> bool:
        return self._fetcher.has_room

    @property
    def traffic(self) -> tuple[int, int]:
        """Number of requests answered and of bytes received."""
        return self.store.requests, self.store.num_bytes

    def plan_requests(self, indices: npt.NDArray[np.int64]) -> list[Request]:
        """Return the requests that fetch images `indices` (int64 [n]) if all are announced at once."""
        joined = join_neighbours(map(self._ranges.find, indices.tolist()))
        return [Request(self.store, ranges, len(ranges)) for ranges in joined]

    def requests_under_way(self, requests: int) -> int:
        """Return the number of concurrent requests if `requests` are allowed."""
        return requests

    def announce(self, indices: npt.NDArray[np.int64], *, is_early: bool = False) -> None:
        """Begin to fetch images `indices` (int64 [n]) that are not in the local copy.

        They stay in memory until they are read, except, if `is_early`, those stored in the local copy.
        """
        sizes = self.samples.sizes[indices]
        wanted = indices[(sizes > 0) & (sizes <= self.options.max_file_bytes)]
        if self.local is not None:
            wanted = wanted[~self.local.has(wanted)]
        self._fetcher.announce(wanted.tolist(), is_early=is_early)

    def make_room(self, num_samples: int) -> bool:
        """Return whether `num_samples` of mean size fit in the local copy, or else in `bytes_ahead`."""
        num_bytes = num_samples * (self.num_bytes // len(self))
        return num_bytes <= self.options.bytes_ahead if self.local is None else self.local.reserve(num_bytes)

    def announce_blocks(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to fetch images `indices` (int64 [n]), neighbours in one request; into a local copy if there is one."""
        self.announce(indices, is_early=True)

    def forget(self) -> None:
        """Forget announced samples: the stream continues elsewhere."""
        self._fetcher.forget()
        self._failed.clear()
        if self.local is not None:
            self.local.reserve(0)

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the places of images `indices`, after waiting for those that are being fetched.

        An image that cannot be fetched stays ELSEWHERE; read() raises its error.
        """
        rows["size"] = self.samples.sizes[indices]
        there = np.zeros(len(indices), bool)
        coming = np.array(self._fetcher.are_coming(indices.tolist()), bool)  # in memory until taken
        if self.local is not None:
            there = self.local.stays(indices) & ~coming
            rows["kind"][there], rows["fd"][there] = STORED, self.local.fd
            rows["offset"][there] = self.local.offsets(indices[there])
            rows["crc"][there] = self.local.records(indices[there])["crc"]
        self.announce(indices[~there & ~coming])  # all at once
        kept: list[memoryview] = []
        for index in [index for index, known in list(self._located.items()) if known() is None]:
            self._located.pop(index, None)
        kinds, offsets, sizes = rows["kind"], rows["offset"], rows["size"].tolist()
        fetched = np.flatnonzero(~there)
        for row, index in zip(fetched.tolist(), indices[fetched].tolist(), strict=True):
            self._failed.pop(index, None)  # an earlier error
            if not 0 < sizes[row] <= self.options.max_file_bytes:
                continue
            try:
                data = self._fetcher.take(index)
            except LoaderError as error:
                self._failed[index] = error
                if error.code == "E-READ":  # others may fail after as long a time: read() waits for those it needs
                    break
                continue
            kept.append(data)
            self._located[index] = weakref.ref(data)
            kinds[row], offsets[row] = ENCODED, np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        return NO_NAMES._replace(kept=kept)

    def read(self, index: int) -> bytes:
        """Return the encoded image `index`. Raises LoaderError: E-MISSING, E-ACCESS, E-READ, E-CHANGED, E-BOMB."""
        path, size = self.path(index), int(self.samples.sizes[index])
        if size > self.options.max_file_bytes:
            raise oversize_error(size, self.options.max_file_bytes, index, path)
        failed, located = self._failed.pop(index, None), self._located.pop(index, None)
        try:
            if failed is not None:
                raise failed
            # The native library does not decode every format: then the bytes are there already.
            data = None if located is None else located()
            return bytes(self._fetcher.take(index) if data is None else data)
        except LoaderError as error:
            fix, place = error.fix, self._about["index_place"]
            if place is not None and error.code in ("E-CHANGED", "E-MISSING"):
                again = f"penstock index DATA --out {printable(place)}"
                fix = f"write the index again with {again}, or pass the index of this data; then start again"
            elif error.code == "E-CHANGED":
                drop_index(self.samples.file)
            raise LoaderError(error.code, error.cause, fix=fix, sample=index, path=path) from None

    def _below_base(self, path: bytes) -> bytes:
        return super()._below_base(without_key(path))

    def is_unchanged(self) -> bool:
        """Return whether containers are unchanged since they were indexed; large ones are sampled."""
        return is_current(self.samples, self.options, every=not self.samples.has_ranges)

    def with_options(self, **changes: Any) -> RemoteSource:
        """Return an independent source of the same data; `changes` are fields of RemoteOptions."""
        return RemoteSource(self.samples, replace(self.options, **changes), self._reopen, **self._about)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(RemoteSource, **self._about), (self.samples, self.options)
