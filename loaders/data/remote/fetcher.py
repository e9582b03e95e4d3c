"""Fetches ranges of objects ahead of use: in parallel, neighbours in one request, within a limit of bytes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from penstock.loaders.data.remote.curl_requests import Answer, CurlRequests, Request, has_curl
from penstock.loaders.data.remote.local_copy import LocalCopy
from penstock.loaders.data.remote.object_store import Deadline, ObjectStore
from penstock.loaders.data.samples.version import Version
from penstock.pipelines.errors import LoaderError

MAX_GAP_BYTES = 64 << 10  # gap between ranges in one request: costs less than another request
MAX_REQUEST_BYTES = 4 << 20


class Range(NamedTuple):
    """The bytes of a sample.

    Attributes:
        sample: index of the sample.
        url: URL of the object.
        start: offset of the bytes in the object.
        size: number of bytes.
        version: version of the object.
        is_early: whether to free its memory once it is in the local copy, because it is needed much later.
    """

    sample: int
    url: str
    start: int
    size: int
    version: Version
    is_early: bool = False


class Fetcher:
    """Fetches announced samples and returns each once; shared by the threads of a process.

    Args:
        store: reads the objects.
        requests: number of concurrent requests.
        bytes_ahead: limit of bytes announced and not yet taken; only a batch that is needed now may exceed it.
        local: local copy that stores fetched samples, if there is one.
    """

    def __init__(self, store: ObjectStore, requests: int, bytes_ahead: int, local: LocalCopy | None = None) -> None:
        self._store, self._bytes_ahead, self._local = store, bytes_ahead, local
        self._num_threads = requests
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._coming: dict[int, tuple[Range, Future[memoryview], int]] = {}  # by sample, with the number of takers
        self._ahead = 0
        self._versions = {}
        self._curl = CurlRequests(lambda: requests)
        forgetting.add(self)

    @property
    def has_room(self) -> bool:
        """Whether more samples may be announced."""
        return self._ahead < self._bytes_ahead

    def announce(self, ranges: Sequence[Range]) -> None:
        """Begin to fetch samples; one that is already being fetched is only counted."""
        new: dict[Range, Future[memoryview]] = {}
        with self._lock:
            for wanted in ranges:
                known = self._coming.get(wanted.sample)
                if known is not None:
                    self._coming[wanted.sample] = (*known[:2], known[2] + 1)
                    continue
                future: Future[memoryview] = Future()
                self._coming[wanted.sample] = (wanted, future, 1)
                self._ahead += wanted.size
                new[wanted] = future
            if self._pool is None and new:
                self._pool = ThreadPoolExecutor(self._num_threads, "penstock-fetch")
        fast: list[Request] = []
        for ranges in join_neighbours(new):
            request = [(wanted, new[wanted]) for wanted in ranges]
            first, last = ranges[0], ranges[-1]
            plain = self._plain_request(first.url)
            if plain is None:
                assert self._pool is not None
                self._pool.submit(self._begin, request)
                continue
            fast.append(
                Request(
                    *plain,
                    first.start,
                    last.start + last.size - first.start,
                    partial(self._may_begin, request),
                    partial(self._finish, request),
                )
            )
        if fast:
            self._curl.submit(fast)

    def _plain_request(self, url: str):
        return (url, ())

    @staticmethod
    def _may_begin(request) -> bool:
        request[:] = [one for one in request if one[1].set_running_or_notify_cancel()]
        return bool(request)

    def _finish(self, request, answer: Answer) -> None:
        first, last = request[0][0], request[-1][0]
        size = last.start + last.size - first.start
        headers = answer.headers
        place, _, total = headers.get(b"content-range", b"").rpartition(b"/")
        if (
            answer.status == 206
            and len(answer.data) == size
            and place == b"bytes %d-%d" % (first.start, first.start + size - 1)
            and self._version(headers.get(b"etag"), headers.get(b"last-modified"), total) == first.version
        ):
            self._store.requests += 1
            self._store.num_bytes += size
            self._deliver(request, memoryview(answer.data))
        else:
            self._pool.submit(self._fetch, request, Deadline())

    def _version(self, etag, modified, total):
        key = (etag, modified, total)
        found = self._versions.get(key)
        if found is None:
            date = parsedate_to_datetime(modified.decode("latin1")) if modified else None
            found = self._versions[key] = Version.of_object(etag.decode("latin1") if etag else None, date, int(total))
        return found

    def take(self, wanted: Range) -> memoryview:
        """Wait for the bytes of a sample and return them. Raises LoaderError."""
        with self._lock:
            known = self._coming.get(wanted.sample)
        if known is None:
            found = None if self._local is None else self._local.read(wanted.sample)
            if found is not None:  # freed since the caller checked
                return memoryview(found)
            self.announce([wanted])
            with self._lock:
                known = self._coming.get(wanted.sample)
            if known is None:  # forget() was called in between
                return self.take(wanted)
        try:
            return known[1].result()
        except CancelledError:  # cancelled by forget()
            return self.take(wanted)
        finally:
            self._let_go(wanted.sample, known[1])

    def are_coming(self, samples: Sequence[int]) -> list[bool]:
        """Return which samples are announced and not yet taken."""
        with self._lock:
            return [sample in self._coming for sample in samples]

    def forget(self) -> None:
        """Forget samples announced and not taken; running requests finish, others do not begin."""
        with self._lock:
            for _, future, _ in self._coming.values():
                future.cancel()
            self._coming.clear()
            self._ahead = 0
        self._curl.stop()

    def _let_go(self, sample: int, future: Future[memoryview]) -> None:
        with self._lock:
            known = self._coming.get(sample)
            if known is None or known[1] is not future:  # freed or forgotten, and perhaps announced again
                return
            if known[2] > 1 and not (future.done() and future.exception()):  # a failed one is fetched again
                self._coming[sample] = (*known[:2], known[2] - 1)
                return
            del self._coming[sample]
            self._ahead -= known[0].size

    def _begin(self, request: list[tuple[Range, Future[memoryview]]]) -> None:
        wanted = [one for one in request if one[1].set_running_or_notify_cancel()]
        if wanted:
            self._fetch(wanted, Deadline())

    def _fetch(self, request: list[tuple[Range, Future[memoryview]]], deadline: Deadline) -> None:
        first = request[0][0]
        try:
            data = read_joined(self._store, [wanted for wanted, _ in request], deadline)
        except LoaderError as error:
            for one in request:  # one by one, so that a bad sample does not fail its neighbours
                if len(request) > 1 and deadline.allows_attempt():
                    self._fetch([one], deadline)
                else:
                    one[1].set_exception(error)
            return
        except BaseException as error:
            for _, future in request:
                future.set_exception(error)
            return
        self._deliver(request, data)

    def _deliver(self, request, data) -> None:
        first = request[0][0]
        for wanted, future in request:
            own = data[wanted.start - first.start : wanted.start - first.start + wanted.size]
            try:
                is_kept = bool(self._local and own.nbytes and self._local.keep(wanted.sample, own, wanted.is_early))
                is_let_go = is_kept and wanted.is_early
                # A copy, so that the last sample of a request does not keep the memory of all.
                future.set_result(own if len(request) == 1 or is_let_go else memoryview(bytes(own)))
                if is_let_go:
                    self._let_go(wanted.sample, future)
            except BaseException as error:  # such as a warning turned into an error: nobody may wait forever
                future.set_exception(error)


def join_neighbours(ranges: Iterable[Range]) -> list[list[Range]]:
    """Join neighbouring ranges of an object; each list is a request."""
    joined: list[list[Range]] = []
    for own in sorted(ranges, key=lambda each: (each.url, each.start)):
        if joined:
            first, last = joined[-1][0], joined[-1][-1]
            gap = own.start - last.start - last.size
            whole = own.start + own.size - first.start
            if own.url == last.url and 0 <= gap <= MAX_GAP_BYTES and whole <= MAX_REQUEST_BYTES:
                joined[-1].append(own)
                continue
        joined.append([own])
    return joined


def read_joined(store: ObjectStore, ranges: Sequence[Range], deadline: Deadline | None = None) -> memoryview:
    """Read neighbours with one request. Raises LoaderError as ObjectStore.read does."""
    first, last = ranges[0], ranges[-1]
    part = store.read(first.url, first.start, last.start + last.size - first.start, first.version, deadline)
    return memoryview(part.data).cast("B")


forgetting: weakref.WeakSet[Any] = weakref.WeakSet()  # objects with forget(), called when the interpreter ends


def _forget_all() -> None:
    for one in list(forgetting):
        one.forget()


# The interpreter waits for all tasks of a pool: without this it would first fetch samples that nobody takes.
threading._register_atexit(_forget_all)  # type: ignore[attr-defined]
