"""Requests ranges of objects by libcurl: one thread with many requests at once, each tried once.

A thread per request, as clients with blocking calls need it, costs twice the processor time.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

CONNECT_TIMEOUT_S = 10
# A request that receives fewer than these bytes per second for these seconds has no answer: a slow line is faster.
STALLED_BYTES_PER_S, STALLED_S = 1024, 20
_BUFFER_BYTES = 256 << 10
_LOOK_EVERY_S = 0.05  # at a limit of 0
_IDLE_S = 30.0  # then the thread ends, and with it its connections
_MAX_REDIRECTS = 10
_NAME_SIZES = {len(name) for name in ("etag", "last-modified", "content-range", "content-encoding")}


def has_curl() -> bool:
    """Return whether pycurl, the Python interface of libcurl, can be imported."""
    try:
        import pycurl  # noqa: F401
    except ImportError:
        return False
    return True


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        status: HTTP status; 0 without an answer.
        data: the body; b"" for every status but 206, or if it is encoded.
        etag, modified, place: the headers ETag, Last-Modified and Content-Range.
        is_untrusted: whether the server's certificate is not trusted.
        seconds: time from the request to the end of its answer.
    """

    status: int
    data: bytes
    etag: bytes
    modified: bytes
    place: bytes
    is_untrusted: bool
    seconds: float


NO_ANSWER = Answer(0, b"", b"", b"", b"", False, 0.0)


class Job:
    """A request for a range: a URL that anyone may read with `headers`.

    Attributes:
        url, headers: address and header lines to send.
        start, size: the range.
    """

    __slots__ = ("headers", "size", "start", "url")

    def __init__(self, url: str, headers: tuple[str, ...], start: int, size: int) -> None:
        self.url, self.headers, self.start, self.size = url, headers, start, size

    def begin(self) -> bool:
        """Return whether the request is still wanted; called before it is sent."""
        raise NotImplementedError

    def finish(self, answer: Answer) -> None:
        """Take the answer, in the thread of the requests: without waiting, and without an error."""
        raise NotImplementedError


class CurlRequests:
    """Sends requests from one thread, which ends after a time without requests.

    Args:
        limit: returns the number of requests that may be under way.
        ca_bundle: path of a file or folder with certificates to trust; "" for libcurl's own.
    """

    def __init__(self, limit: Callable[[], int], ca_bundle: str = "") -> None:
        self._state = _State(limit, ca_bundle)
        self._end = weakref.finalize(self, self._state.stop)

    def submit(self, jobs: Iterable[Job]) -> None:
        """Send requests when there is room, in this order. Raises OSError, RuntimeError if it cannot start a thread."""
        self._state.submit(jobs)

    def abandon(self) -> None:
        """Leave the thread alone: it belongs to the process that this one was forked from."""
        self._end.detach()

    def drop_waiting(self) -> None:
        """Drop the requests that are not under way, and end the thread when the others are answered."""
        self._state.stop()


class _State:
    """What the thread shares with others; it has no reference to CurlRequests, whose end ends the thread."""

    def __init__(self, limit: Callable[[], int], ca_bundle: str) -> None:
        self.limit, self.ca_bundle = limit, ca_bundle
        self.queue = collections.deque[Job]()
        self.lock = threading.Lock()
        self.wake_fd = -1  # while the thread lives
        self.is_stopped = False

    def submit(self, jobs: Iterable[Job]) -> None:
        with self.lock:
            self.is_stopped = False
            self.queue.extend(jobs)
            if self.wake_fd >= 0:
                os.eventfd_write(self.wake_fd, 1)
                return
            try:
                self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                threading.Thread(target=_run, args=(self,), name="penstock-fetch").start()
            except BaseException:
                self.give_up()
                raise

    def stop(self) -> None:
        with self.lock:
            self.is_stopped = True
            self.queue.clear()
            if self.wake_fd >= 0:
                os.eventfd_write(self.wake_fd, 1)

    def give_up(self) -> list[Job]:
        """Return the waiting requests, which no thread will send; the caller has the lock."""
        jobs = list(self.queue)
        self.queue.clear()
        if self.wake_fd >= 0:
            os.close(self.wake_fd)
            self.wake_fd = -1
        return jobs

    def end(self, *, idle: bool) -> bool:
        """Return whether the thread may end: nothing was submitted meanwhile."""
        with self.lock:
            if self.queue or not (idle or self.is_stopped):
                return False
            self.give_up()
            return True


def _run(state: _State) -> None:
    under_way = dict[Any, _Handle]()
    try:
        loop = _Loop(state, under_way)
        try:
            while loop.step():
                pass
        finally:
            loop.close()
    except BaseException:  # such as too many open files: nobody may wait forever
        with state.lock:
            waiting = state.give_up()
        for job in [*(handle.job for handle in under_way.values()), *waiting]:
            job.finish(NO_ANSWER)
        raise


class _Loop:
    """The requests under way, driven by the readiness of their sockets."""

    def __init__(self, state: _State, under_way: dict[Any, _Handle]) -> None:
        import pycurl

        self._state, self._curl = state, pycurl
        self._epoll = select.epoll()
        self._epoll.register(state.wake_fd, select.EPOLLIN)
        self._events = dict[int, int]()  # by socket
        self._due: float | None = None  # time at which libcurl wants to be called
        self._free: list[_Handle] = []
        self._under_way = under_way  # by libcurl's handle
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._wanted = {
            pycurl.POLL_IN: select.EPOLLIN,
            pycurl.POLL_OUT: select.EPOLLOUT,
            pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
        }

    def close(self) -> None:
        for handle in self._under_way:
            self._multi.remove_handle(handle)
        self._multi.close()
        self._epoll.close()

    def step(self) -> bool:
        """Wait for something to do and do it; return False at the end of the thread."""
        state, curl = self._state, self._curl
        self._begin()
        wait_s = _IDLE_S if self._due is None else max(0.0, self._due - time.monotonic())
        if state.queue and not self._under_way:  # the limit is 0 for now
            wait_s = min(wait_s, _LOOK_EVERY_S)
        events = self._epoll.poll(wait_s)
        for fd, event in events:
            if fd == state.wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
                continue
            ready = curl.CSELECT_IN * bool(event & (select.EPOLLIN | select.EPOLLHUP))
            ready |= curl.CSELECT_OUT * bool(event & select.EPOLLOUT) | curl.CSELECT_ERR * bool(event & select.EPOLLERR)
            self._multi.socket_action(fd, ready)
        if self._due is not None and self._due <= time.monotonic():
            self._due = None
            self._multi.socket_action(curl.SOCKET_TIMEOUT, 0)
        self._take_finished()
        may_end = not self._under_way and (state.is_stopped or not events)
        return not (may_end and state.end(idle=not events))

    def _begin(self) -> None:
        """Send waiting requests while the limit allows it."""
        state = self._state
        while state.queue and len(self._under_way) < state.limit():
            try:
                job = state.queue.popleft()
            except IndexError:  # dropped in between
                return
            if job.begin():
                handle = self._free.pop() if self._free else _Handle(self._curl, state.ca_bundle)
                handle.send(job)
                self._under_way[handle.curl] = handle
                self._multi.add_handle(handle.curl)

    def _take_finished(self) -> None:
        while True:
            more, good, bad = self._multi.info_read()
            for curl, error in (*((each, 0) for each in good), *((each[0], each[1]) for each in bad)):
                handle = self._under_way.pop(curl)
                self._multi.remove_handle(curl)
                self._free.append(handle)
                job, answer = handle.answer(error)
                job.finish(answer)
            if not more:
                return

    def _watch(self, what: int, fd: int, _multi: object, _data: object) -> None:
        """Watch a socket as libcurl asks."""
        events = self._wanted.get(what, 0)
        known = self._events.get(fd, 0)
        if events == known:
            return
        if not events:
            del self._events[fd]
            with contextlib.suppress(OSError):  # closed already
                self._epoll.unregister(fd)
            return
        self._events[fd] = events
        (self._epoll.modify if known else self._epoll.register)(fd, events)

    def _set_timer(self, after_ms: int) -> None:
        self._due = None if after_ms < 0 else time.monotonic() + after_ms / 1000


class _Handle:
    """One request at a time, with the memory for its answer; reused, because libcurl's options cost time."""

    def __init__(self, pycurl: Any, ca_bundle: str) -> None:
        self._pycurl, self.curl = pycurl, pycurl.Curl()
        self._url, self._most = "", 0
        self._headers: tuple[str, ...] | None = None
        self.job: Job
        self._head: list[bytes] = []
        self._body: list[bytes] = []
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.NOPROGRESS, 1),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),  # HTTP/2 would send all answers in one connection
            (pycurl.BUFFERSIZE, _BUFFER_BYTES),
            (pycurl.CONNECTTIMEOUT, CONNECT_TIMEOUT_S),
            (pycurl.LOW_SPEED_LIMIT, STALLED_BYTES_PER_S),
            (pycurl.LOW_SPEED_TIME, STALLED_S),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.REDIR_PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.MAXREDIRS, _MAX_REDIRECTS),
            (pycurl.HEADERFUNCTION, self._head.append),
            (pycurl.WRITEFUNCTION, self._body.append),
        ):
            self.curl.setopt(option, value)
        if ca_bundle:
            self.curl.setopt(pycurl.CAPATH if os.path.isdir(ca_bundle) else pycurl.CAINFO, ca_bundle)

    def send(self, job: Job) -> None:
        """Prepare a request."""
        pycurl, curl, self.job = self._pycurl, self.curl, job
        self._head.clear()
        self._body.clear()
        if job.url != self._url:
            curl.setopt(pycurl.URL, job.url)
            self._url = job.url
        if job.headers != self._headers:
            curl.unsetopt(pycurl.HTTPHEADER)  # an empty list leaves the earlier ones
            if job.headers:
                curl.setopt(pycurl.HTTPHEADER, list(job.headers))
            # They may be secret, and must not be sent to another host.
            curl.setopt(pycurl.FOLLOWLOCATION, int(not job.headers))
            self._headers = job.headers
        if job.size > self._most:  # a server without ranges sends the whole object
            self._most = max(job.size, _BUFFER_BYTES)
            curl.setopt(pycurl.MAXFILESIZE_LARGE, self._most)
        curl.setopt(pycurl.RANGE, f"{job.start}-{job.start + job.size - 1}")
        self._begun = time.monotonic()

    def answer(self, error: int) -> tuple[Job, Answer]:
        """Return the request and its answer; error: number of libcurl's error, or 0."""
        job, pycurl = self.job, self._pycurl
        status, is_encoded = 0 if error else self.curl.getinfo(pycurl.RESPONSE_CODE), False
        etag = modified = place = b""
        for line in self._head:
            name, _, value = line.partition(b":")
            if len(name) in _NAME_SIZES:
                name = name.lower()
                if name == b"etag":
                    etag = value.strip()
                elif name == b"last-modified":
                    modified = value.strip()
                elif name == b"content-range":
                    place = value.strip()
                elif name == b"content-encoding":
                    is_encoded = True
            elif not value and name.startswith(b"HTTP/"):  # the answer after a redirect
                etag = modified = place = b""
                is_encoded = False
        body = self._body
        data = b"" if status != 206 or is_encoded else body[0] if len(body) == 1 else b"".join(body)
        self._body.clear()
        del self.job  # with its samples
        is_untrusted = error in (pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_CACERT_BADFILE)
        return job, Answer(status, data, etag, modified, place, is_untrusted, time.monotonic() - self._begun)
