"""Fetches ranges of objects ahead of use: in parallel, neighbours in one request, within a limit of bytes."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.loaders.data.remote.certificates import trusted_place
from penstock.loaders.data.remote.curl_requests import Answer, CurlRequests, Job, has_curl
from penstock.loaders.data.remote.local_copy import LocalCopy
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.remote.plain_requests import PlainRequests
from penstock.loaders.data.requests.pace import Pace
from penstock.loaders.data.requests.paced_threads import PacedThreads
from penstock.loaders.data.requests.request_retries import ENDING, Deadline
from penstock.loaders.data.samples.version import Version
from penstock.loaders.system.retries import HEALING_STATUS
from penstock.pipelines.errors import LoaderError

MAX_GAP_BYTES = 64 << 10  # gap between ranges in one request: costs less than another request
MAX_REQUEST_BYTES = 4 << 20
# Memory for more bytes ahead is colder: with 256 MiB instead of these, libcurl's thread takes twice the processor time.
_FIRST_AHEAD = 32 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0


class Range(NamedTuple):
    """The bytes of a sample.

    Attributes:
        sample: index of the sample.
        url: URL of the object.
        start: offset of the bytes in the object.
        size: number of bytes.
        version: version of the object.
    """

    sample: int
    url: str
    start: int
    size: int
    version: Version


class _Coming:
    """A sample that is being fetched, or was fetched and not yet taken.

    Attributes:
        wanted: its range.
        is_early: whether its memory is freed once it is in the local copy.
        takers: number of times it was announced and not taken.
        data, error: the result; both None while it is being fetched.
        is_forgotten: whether nobody waits for it any more.
    """

    __slots__ = ("data", "error", "is_early", "is_forgotten", "takers", "wanted")

    def __init__(self, wanted: Range, is_early: bool) -> None:
        self.wanted, self.is_early, self.takers = wanted, is_early, 1
        self.data: memoryview | None = None
        self.error: BaseException | None = None
        self.is_forgotten = False

    @property
    def is_done(self) -> bool:
        return self.data is not None or self.error is not None


class Fetcher:
    """Fetches announced samples and returns each once; shared by the threads of a process.

    A request is sent by libcurl if any HTTP client could send it. It has one attempt. If it fails in any way, or if
    libcurl cannot send it, a thread reads the range from `store`, which repeats requests and names causes.

    Args:
        store: reads the objects.
        find: returns the range of a sample.
        pace: says how many requests may be under way, and learns from their answers.
        bytes_ahead: limit of bytes announced and not yet taken; only a batch that is needed now may exceed it.
        local: local copy that stores fetched samples, if there is one.
    """

    def __init__(
        self,
        store: ObjectStore,
        find: Callable[[int], Range],
        pace: Pace,
        bytes_ahead: int,
        local: LocalCopy | None = None,
    ) -> None:
        self._store, self._find, self._bytes_ahead, self._local = store, find, bytes_ahead, local
        self._pace = store.pace = pace
        self._plain = PlainRequests(store.access.headers.pairs, store.mirrors)
        self._may_curl = has_curl()
        self._curl: CurlRequests | None = None
        self.begin_anew()
        forgetting.add(self)

    def begin_anew(self) -> None:
        """Begin without requests and threads: a forked process has none of those that its parent had."""
        if self._curl is not None:
            self._curl.abandon()
            self._curl = None
        self._threads = PacedThreads(self._pace)
        self._pause_s = self._resume_at = 0.0  # of requests by libcurl, while the server refuses them
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._num_waiting = 0  # threads that wait for `_arrived`
        self._coming: dict[int, _Coming] = {}  # by sample
        self._ahead = 0
        # Bytes that may be ahead, and those taken since that number has changed.
        self._room, self._taken = min(self._bytes_ahead, _FIRST_AHEAD), 0
        self._stop = threading.Event()  # set when the samples announced so far are forgotten

    @property
    def has_room(self) -> bool:
        """Whether more samples may be announced."""
        return self._ahead < self._room

    def announce(self, samples: Iterable[int], *, is_early: bool = False) -> None:
        """Begin to fetch samples; one that is already being fetched is only counted.

        is_early: whether to free their memory once they are in the local copy, because they are needed much later.
        """
        new: dict[int, _Coming] = {}
        places = [self._find(sample) for sample in samples]
        with self._lock:
            for wanted in places:
                known = self._coming.get(wanted.sample)
                if known is not None:
                    known.takers += 1
                    continue
                new[wanted.sample] = self._coming[wanted.sample] = _Coming(wanted, is_early)
                self._ahead += wanted.size
        try:
            self._request(new)
        except BaseException:  # such as Ctrl-C: nobody may wait for what was not requested
            with self._lock:
                for sample, coming in new.items():
                    coming.is_forgotten = True
                    if self._coming.get(sample) is coming:
                        del self._coming[sample]
                        self._ahead -= coming.wanted.size
                self._arrived.notify_all()
            raise

    def _request(self, new: dict[int, _Coming]) -> None:
        """Request samples, by number: by libcurl where it can, else by a thread."""
        jobs: list[_RangeJob] = []
        for joined in join_neighbours([coming.wanted for coming in new.values()]):
            parts = [new[wanted.sample] for wanted in joined]
            plain = self._plain.find(joined[0].url) if self._may_curl else None
            if plain is None:
                self._submit(parts)
            else:
                jobs.append(_RangeJob(self, parts, *plain))
        if not jobs:
            return
        with self._lock:
            if self._curl is None:
                scheme = jobs[0].parts[0].wanted.url.partition(":")[0]
                self._curl = CurlRequests(_limit_of(self), trusted_place(scheme))
            curl = self._curl
        try:
            curl.submit(jobs)
        except (OSError, RuntimeError):  # too many open files or threads, for now
            for job in jobs:
                self._submit(job.parts)

    def take(self, sample: int) -> memoryview:
        """Wait for the bytes of a sample and return them. Raises LoaderError."""
        while True:
            coming = self._coming.get(sample)
            if coming is None:
                found = None if self._local is None else self._local.read(sample)
                if found is not None:  # freed since the caller checked
                    return memoryview(found)
                self.announce([sample])
                continue
            if not coming.is_done:
                self._wait_for(coming)
            self._let_go(coming)
            if coming.error is not None:
                raise coming.error
            if coming.data is not None:
                return coming.data

    def are_coming(self, samples: Sequence[int]) -> list[bool]:
        """Return which samples are announced and not yet taken."""
        with self._lock:
            return [sample in self._coming for sample in samples]

    def forget(self) -> None:
        """Forget samples announced and not taken; running requests finish, others do not begin or are not repeated."""
        with self._lock:
            self._stop.set()
            self._stop = ENDING if ENDING.is_set() else threading.Event()
            for coming in self._coming.values():
                coming.is_forgotten = True
            self._coming.clear()
            self._ahead = 0
            self._arrived.notify_all()
        if self._curl is not None:
            self._curl.drop_waiting()

    def _wait_for(self, coming: _Coming) -> None:
        """Wait until a sample is there or forgotten."""
        with self._arrived:
            if self._taken >= self._room:  # all that was fetched ahead was not enough
                self._room, self._taken = min(self._bytes_ahead, 2 * self._room), 0
            self._num_waiting += 1
            try:
                self._arrived.wait_for(lambda: coming.is_done or coming.is_forgotten)
            finally:
                self._num_waiting -= 1

    def _let_go(self, coming: _Coming) -> None:
        with self._lock:
            sample = coming.wanted.sample
            if self._coming.get(sample) is not coming:  # freed or forgotten, and perhaps announced again
                return
            coming.takers -= 1
            self._taken += coming.wanted.size
            if coming.takers == 0 or coming.error is not None:  # a failed one is fetched again
                del self._coming[sample]
                self._ahead -= coming.wanted.size

    def _tell(self) -> None:
        """Wake the threads that wait for samples."""
        if self._num_waiting:
            with self._arrived:
                self._arrived.notify_all()

    @property
    def curl_limit(self) -> int:
        """Number of requests by libcurl that may be under way now."""
        return self._pace.limit if time.monotonic() >= self._resume_at else 0

    def _submit(self, parts: list[_Coming]) -> None:
        """Let a thread read a request from the store."""
        self._threads.submit(partial(self._begin, parts))

    def _begin(self, parts: list[_Coming]) -> None:
        with self._lock:
            parts, stop = [part for part in parts if not part.is_forgotten], self._stop
        if parts:
            self._fetch(parts, Deadline(self._store.access.retry_s, stop))

    def _fetch(self, parts: list[_Coming], deadline: Deadline) -> None:
        try:
            data = read_joined(self._store, [part.wanted for part in parts], deadline)
        except BaseException as error:
            for part in parts:  # one by one, so that a bad sample does not fail its neighbours
                if isinstance(error, LoaderError) and len(parts) > 1 and deadline.allows_attempt():
                    self._fetch([part], deadline)
                else:
                    self._fail([part], error)
            return
        self._deliver(parts, data)

    def _fail(self, parts: Iterable[_Coming], error: BaseException) -> None:
        for part in parts:
            part.error = error
        self._tell()

    def _deliver(self, parts: list[_Coming], data: memoryview) -> None:
        """Store and hand out the samples of a request that was answered."""
        first = parts[0].wanted.start
        for part in parts:
            wanted = part.wanted
            own = data[wanted.start - first : wanted.start - first + wanted.size]
            try:
                is_kept = bool(self._local and own.nbytes and self._local.keep(wanted.sample, own, part.is_early))
                is_let_go = is_kept and part.is_early
                # A copy, so that the last sample of a request does not keep the memory of all.
                part.data = own if len(parts) == 1 or is_let_go else memoryview(bytes(own))
                if is_let_go:
                    self._let_go(part)
            except BaseException as error:  # such as a warning turned into an error: nobody may wait forever
                part.error = error
        self._tell()

    def finish(self, job: _RangeJob, answer: Answer) -> None:
        """Take the answer to a request by libcurl, in its thread."""
        first = job.parts[0].wanted
        if self._plain.is_right(answer, job.start, job.size, first.version):
            self._pause_s = 0.0
            self._pace.answered(answer.seconds, job.size)
            self._store.count(job.size)
            self._deliver(job.parts, memoryview(answer.data))
            return
        self._plain.forget(first.url)
        if answer.is_untrusted:  # libcurl finds other certificates than the store: do not ask it again
            self._may_curl = False
        elif answer.status == 0 or answer.status in HEALING_STATUS:
            self._store.count_retry()
            self._pace.busy()
            # Meanwhile the store repeats the requests that failed.
            self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s or _FIRST_PAUSE_S)
            self._resume_at = time.monotonic() + self._pause_s
        self._submit(job.parts)


def _limit_of(fetcher: Fetcher) -> Callable[[], int]:
    """Return a function that returns the number of requests that libcurl may have under way; it keeps no reference."""
    weak = weakref.ref(fetcher)

    def limit() -> int:
        now = weak()
        return 0 if now is None else now.curl_limit

    return limit


class _RangeJob(Job):
    """A request for the samples of a fetcher."""

    __slots__ = ("_fetcher", "parts")

    def __init__(self, fetcher: Fetcher, parts: list[_Coming], url: str, headers: tuple[str, ...]) -> None:
        super().__init__(url, headers, *_span([part.wanted for part in parts]))
        self._fetcher, self.parts = weakref.ref(fetcher), parts

    def begin(self) -> bool:
        return not all(part.is_forgotten for part in self.parts)

    def finish(self, answer: Answer) -> None:
        fetcher = self._fetcher()
        if fetcher is None:
            return
        try:
            fetcher.finish(self, answer)
        except BaseException as error:  # nobody may wait forever
            fetcher._fail(self.parts, error)


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
    part = store.read(ranges[0].url, *_span(ranges), ranges[0].version, deadline)
    return memoryview(part.data).cast("B")


def _span(ranges: Sequence[Range]) -> tuple[int, int]:
    """Return the offset and the number of bytes from the first to the last of joined neighbours."""
    return ranges[0].start, ranges[-1].start + ranges[-1].size - ranges[0].start


forgetting: weakref.WeakSet[Any] = weakref.WeakSet()  # objects with forget(), called when the interpreter ends


def _forget_all() -> None:
    ENDING.set()
    for one in list(forgetting):
        one.forget()


def _begin_anew() -> None:
    for one in list(forgetting):
        if isinstance(one, Fetcher):
            one.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
# The interpreter waits for all tasks of a pool: without this it would first fetch samples that nobody takes.
threading._register_atexit(_forget_all)  # type: ignore[attr-defined]
