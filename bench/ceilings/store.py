"""Remote storage alone: how long a request takes, and what many at a time bring."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from penstock.bench.measure.clock import Rate, Stopwatch
from penstock.bench.measure.network_time import StoreTime
from penstock.loaders.create import prepare_whole
from penstock.loaders.remote.fetcher import Range, read_joined
from penstock.loaders.remote.remote_source import FetchedRanges
from penstock.loaders.sources.contract import Source
from penstock.loaders.sources.view import View
from penstock.pipelines.errors import LoaderError

_LOOKS = 5
_MORE, _MOST_REQUESTS = 4, 512  # times as many requests are tried, up to so many
_MOST_BYTES = 64 << 20  # of one measurement


class _Run(NamedTuple):
    """Hold one measurement: what came, and in which time."""

    requests: int
    images: int
    num_bytes: int
    seconds: float


def find_remote(source: Source) -> FetchedRanges | None:
    """Return the remote source that `source` is or shows a part of; None for data on this machine."""
    while isinstance(source, View):
        source = source.source
    return source if isinstance(source, FetchedRanges) else None


def fetched_apart(source: Source, **changes: Any) -> Source:
    """Return the same data; if they are remote, with a fetcher of their own and other options of RemoteOptions."""
    return prepare_whole(source, lambda whole: whole.with_options(**changes) if find_remote(whole) else whole)  # type: ignore[attr-defined]


class StoreCeiling:
    """Measures a remote store with the requests that a loader makes of it: random batches, neighbours joined.

    Each measurement ends after its seconds or 64 MiB, with the requests that are then under way.

    Attributes:
        requests: number of requests that the loader makes at a time.
    """

    def __init__(self, source: Source, batch_size: int, seed: int) -> None:
        remote = find_remote(source)
        assert remote is not None
        self._remote = remote.with_options(local_cache=None, local_bytes=None)
        self._source, self._batch_size, self._seed = source, batch_size, seed
        self._requests, self._lock = self._plan(), threading.Lock()
        self._first_byte_s: list[float]
        self._lone_s: list[float]
        self._runs: dict[int, list[_Run]]
        self.begin(remote.options.requests)

    @property
    def more_requests(self) -> int | None:
        """A larger number of requests that is worth trying; None if there are many already."""
        return _MORE * self.requests if _MORE * self.requests <= _MOST_REQUESTS else None

    def begin(self, requests: int) -> None:
        """Begin anew, for a loader that makes so many requests at a time."""
        self.requests = requests
        self._first_byte_s, self._lone_s, self._runs = [], [], {}

    def rate(self, seconds: float) -> Rate:
        """Measure images/s with the loader's number of requests, after a few requests alone. Raises LoaderError."""
        self._look()
        return self._measure(self.requests, seconds)

    def rate_of_more(self, seconds: float) -> Rate:
        """Measure images/s with `more_requests`.

        Raises ValueError if `rate` has shown that requests wait for each other already, LoaderError.
        """
        assert self.more_requests is not None
        known = self.time()
        if known is not None and known.is_queueing:
            raise ValueError(
                f"of {self.requests} requests at a time each takes {1e3 * known.request_s:,.0f} ms, alone "
                f"{1e3 * known.lone_s:,.0f} ms: the bandwidth is used up"
            )
        return self._measure(self.more_requests, seconds)

    def gains_by_more(self, seconds: float) -> bool:
        """Return whether `more_requests` bring clearly more, and fit the loader's bytes ahead; measures for that."""
        with suppress(LoaderError, ValueError):
            self.rate(seconds)
            if self.more_requests is not None:
                self.rate_of_more(seconds)
        found = self.time()
        if found is None or not found.more_requests:
            return False
        return found.gains_by_more and found.more_requests * found.bytes_per_request <= self._remote.options.bytes_ahead

    def time(self) -> StoreTime | None:
        """Return the medians of what was measured; None before `rate`."""
        runs, more = self._runs.get(self.requests), self._runs.get(self.more_requests or 0)
        if not runs:
            return None
        return StoreTime(
            requests=self.requests,
            first_byte_s=median(self._first_byte_s),
            lone_s=median(self._lone_s),
            request_s=median(self.requests * run.seconds / run.requests for run in runs),
            images_per_request=sum(run.images for run in runs) / sum(run.requests for run in runs),
            bytes_per_s=median(run.num_bytes / run.seconds for run in runs),
            more_requests=self.more_requests if more else None,
            more_bytes_per_s=median(run.num_bytes / run.seconds for run in more) if more else None,
        )

    def _look(self) -> None:
        """Time a few requests one after another: their first byte, and all of their bytes."""
        self._touch(next(self._requests))  # opens the connection
        for _ in range(_LOOKS):
            watch = Stopwatch()
            self._touch(next(self._requests))
            self._first_byte_s.append(watch.seconds)
            watch = Stopwatch()
            read_joined(self._remote.store, next(self._requests))
            self._lone_s.append(watch.seconds)

    def _touch(self, wanted: list[Range]) -> None:
        first = wanted[0]
        self._remote.store.read(first.url, first.start, 1, first.version)

    def _measure(self, requests: int, seconds: float) -> Rate:
        with ThreadPoolExecutor(requests) as pool:
            list(pool.map(self._touch, [self._next() for _ in range(requests)]))  # opens the connections
            watch = Stopwatch()
            stop_at = self._remote.store.num_bytes + _MOST_BYTES
            workers = [pool.submit(self._fetch, watch, seconds, stop_at) for _ in range(requests)]
            done = [worker.result() for worker in workers]
            requested, images, num_bytes = np.sum(done, axis=0).tolist()
            run = _Run(requested, images, num_bytes, watch.seconds)
        self._runs.setdefault(requests, []).append(run)
        return Rate.from_steps([run.images], [run.seconds])

    def _fetch(self, watch: Stopwatch, seconds: float, stop_at: int) -> tuple[int, int, int]:
        """Make one request after another, at least one; return the counts of a run."""
        requests = images = num_bytes = 0
        while not requests or (watch.seconds < seconds and self._remote.store.num_bytes < stop_at):
            wanted = self._next()
            num_bytes += read_joined(self._remote.store, wanted).nbytes
            requests, images = requests + 1, images + len(wanted)
        return requests, images, num_bytes

    def _next(self) -> list[Range]:
        with self._lock:
            return next(self._requests)

    def _plan(self) -> Iterator[list[Range]]:
        """Yield the requests for random batches, epoch after epoch."""
        for epoch in count():
            order = np.random.default_rng((self._seed, epoch)).permutation(len(self._source))
            for begin in range(0, len(order), self._batch_size):
                indices, source = order[begin : begin + self._batch_size], self._source
                while isinstance(source, View):
                    indices, source = source.indices_of(indices), source.source
                yield from self._remote.plan_requests(indices)
