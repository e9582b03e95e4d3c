"""Ceilings of remote storage: the time of one request, and the rate of many concurrent ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from statistics import median
from typing import NamedTuple

import numpy as np

from penstock.bench.probe.ceilings.remote_data import count_remote, fetched_apart, find_remote, plan_requests
from penstock.bench.record.clock import Rate, Stopwatch
from penstock.bench.record.loader_time import StoreTime
from penstock.loaders.data.remote.fetcher import read_joined
from penstock.loaders.data.remote.remote_source import Request
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.front.choose_order import choose_order
from penstock.pipelines.errors import LoaderError

_LOOKS = 5
_MORE, _MOST_REQUESTS = 4, 512  # requests to try: the loader's times _MORE, at most _MOST_REQUESTS
_MOST_BYTES = 64 << 20  # bytes per measurement
_SHARE_OF = 4096  # samples to estimate the remote share from


class _Run(NamedTuple):
    """Hold the counts and the time of one measurement."""

    requests: int
    images: float
    num_bytes: int
    seconds: float


class StoreCeiling:
    """Measures a remote store with a loader's requests: random batches, neighbours joined.

    Each measurement ends after its seconds or 64 MiB; requests under way are completed.

    Attributes:
        requests: maximum number of concurrent requests per remote source.
    """

    def __init__(self, source: Source, batch_size: int, seed: int) -> None:
        self._source = fetched_apart(source, local_cache=None, local_bytes=None)
        self._remotes, self._batch_size = find_remote(self._source), batch_size
        assert self._remotes
        self._order = choose_order(source, shuffle=True, seed=seed)
        some = self._order(0, np.arange(min(self._order.n, _SHARE_OF)))
        self._share = count_remote(self._source, some) / len(some)
        self._requests, self._lock = self._plan(), threading.Lock()
        self._first_byte_s: list[float]
        self._lone_s: list[float]
        self._runs: dict[int, list[_Run]]
        self.begin(self._remotes[0].options.first_requests)

    @property
    def more_requests(self) -> int | None:
        """A larger number of requests worth trying; None if there are already many, or a loader would not make more."""
        more = _MORE * self.requests
        return more if more <= _MOST_REQUESTS and self._under_way(more) > self._under_way(self.requests) else None

    def _under_way(self, requests: int) -> int:
        """Return the number of concurrent requests of a loader to all remote sources together."""
        return sum(remote.requests_under_way(requests) for remote in self._remotes)

    def begin(self, requests: int) -> None:
        """Start over for a loader with this many concurrent requests."""
        self.requests = requests
        self._first_byte_s, self._lone_s, self._runs = [], [], {}

    def rate(self, seconds: float) -> Rate:
        """Measure images/s with the loader's number of requests, after a few single requests. Raises LoaderError."""
        self._look()
        return self._measure(self.requests, seconds)

    def rate_of_more(self, seconds: float) -> Rate:
        """Measure images/s with `more_requests`.

        Raises ValueError if `rate` has shown that requests already wait for each other, LoaderError.
        """
        assert self.more_requests is not None
        known = self.time()
        if known is not None and known.is_queueing:
            raise ValueError(
                f"each of {self.requests} concurrent requests takes {1e3 * known.request_s:,.0f} ms, a single one "
                f"{1e3 * known.lone_s:,.0f} ms: the bandwidth is used up"
            )
        return self._measure(self.more_requests, seconds)

    def gains_by_more(self, seconds: float) -> bool:
        """Measure; return whether `more_requests` are clearly faster and fit into the loader's bytes ahead."""
        with suppress(LoaderError, ValueError):
            self.rate(seconds)
            if self.more_requests is not None:
                self.rate_of_more(seconds)
        found = self.time()
        if found is None or not found.more_requests:
            return False
        bytes_ahead = min(remote.options.bytes_ahead for remote in self._remotes)
        return found.gains_by_more and found.more_requests * found.bytes_per_request <= bytes_ahead

    def time(self) -> StoreTime | None:
        """Return the medians of the measurements; None before `rate`."""
        under_way = self._under_way(self.requests)
        runs, more = self._runs.get(self.requests), self._runs.get(self.more_requests or 0)
        if not runs:
            return None
        return StoreTime(
            requests=self.requests,
            first_byte_s=median(self._first_byte_s),
            lone_s=median(self._lone_s),
            request_s=median(under_way * run.seconds / run.requests for run in runs),
            images_per_request=sum(run.images for run in runs) / sum(run.requests for run in runs),
            bytes_per_s=median(run.num_bytes / run.seconds for run in runs),
            more_requests=self.more_requests if more else None,
            more_bytes_per_s=median(run.num_bytes / run.seconds for run in more) if more else None,
            under_way=under_way,
            share=self._share,
        )

    def _look(self) -> None:
        """Time a few requests one after another: to the first byte, and to the last."""
        self._touch(next(self._requests))  # opens the connection
        for _ in range(_LOOKS):
            watch = Stopwatch()
            self._touch(next(self._requests))
            self._first_byte_s.append(watch.seconds)
            watch = Stopwatch()
            request = next(self._requests)
            read_joined(request.store, request.ranges)
            self._lone_s.append(watch.seconds)

    def _touch(self, request: Request) -> None:
        first = request.ranges[0]
        request.store.read(first.url, first.start, 1, first.version)

    def _measure(self, requests: int, seconds: float) -> Rate:
        threads = self._under_way(requests)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._touch, [self._next() for _ in range(threads)]))  # opens the connections
            watch, left = Stopwatch(), [_MOST_BYTES]
            workers = [pool.submit(self._fetch, watch, seconds, left) for _ in range(threads)]
            requested, images, num_bytes = np.sum([worker.result() for worker in workers], axis=0).tolist()
            run = _Run(int(requested), images, int(num_bytes), watch.seconds)
        self._runs.setdefault(requests, []).append(run)
        return Rate.from_steps([run.images], [run.seconds])

    def _fetch(self, watch: Stopwatch, seconds: float, left: list[int]) -> tuple[int, float, int]:
        """Make one request after another, at least one, until no bytes are `left`; return the counts of a run."""
        requests, images, num_bytes = 0, 0.0, 0
        while not requests or (watch.seconds < seconds and left[0] > 0):
            request = self._next()
            came = read_joined(request.store, request.ranges).nbytes
            left[0] -= came  # shared by all threads; a lost update only allows one more request
            requests, images, num_bytes = requests + 1, images + request.images, num_bytes + came
        return requests, images, num_bytes

    def _next(self) -> Request:
        with self._lock:
            return next(self._requests)

    def _plan(self) -> Iterator[Request]:
        """Yield the requests for random batches of all epochs; each counts its share of the local images too."""
        planned = 0
        for epoch in count():
            if epoch and not planned:
                raise LoaderError("E-NODATA", "no sample of an epoch is remote")
            planned = 0
            for begin in range(0, self._order.n, self._batch_size):
                positions = np.arange(begin, min(begin + self._batch_size, self._order.n))
                indices = self._order(epoch, positions)
                num_remote = count_remote(self._source, indices)
                planned += num_remote
                for request in plan_requests(self._source, indices):
                    yield request._replace(images=request.images * len(indices) / num_remote)
