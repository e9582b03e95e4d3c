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
_IDLE_S = 30.0  # then the thread ends, and with it its connections
_MAX_REDIRECTS = 10


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
        headers: header lines of the answer, after redirects, with names in lower case.
        data: the body; b"" for every status but 206.
        seconds: time from the request to the end of its answer.
    """

    status: int
    headers: dict[bytes, bytes]
    data: bytes
    seconds: float


class Request(NamedTuple):
    """A request for a range.

    Attributes:
        url: a URL that anyone may read with `headers`.
        headers: header lines to send.
        start, size: the range.
        begin: called before the request is sent; False drops it.
        finish: called with the answer, in the thread of the requests; must not block for long.
    """

    url: str
    headers: tuple[str, ...]
    start: int
    size: int
    begin: Callable[[], bool]
    finish: Callable[[Answer], None]


class CurlRequests:
    """Sends requests from one thread, which ends after a time without requests.

    Args:
        limit: returns the number of requests that may be under way.
        ca_bundle: path of a file with certificates to trust; "" for libcurl's own.
    """

    def __init__(self, limit: Callable[[], int], ca_bundle: str = "") -> None:
        self._state = _State(limit, ca_bundle)
        weakref.finalize(self, self._state.stop)

    def submit(self, requests: Iterable[Request]) -> None:
        """Send requests when there is room, in this order."""
        self._state.submit(requests)

    def stop(self) -> None:
        """Drop the requests that are not under way, and end the thread when the others are answered."""
        self._state.stop()


class _State:
    """What the thread shares with others; it has no reference to CurlRequests, whose end ends the thread."""

    def __init__(self, limit: Callable[[], int], ca_bundle: str) -> None:
        self.limit, self.ca_bundle = limit, ca_bundle
        self.queue = collections.deque[Request]()
        self.lock = threading.Lock()
        self.wake_fd = -1  # while the thread lives
        self.is_stopped = False

    def submit(self, requests: Iterable[Request]) -> None:
        with self.lock:
            self.is_stopped = False
            self.queue.extend(requests)
            if self.wake_fd < 0:
                self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                threading.Thread(target=_run, args=(self,), name="penstock-fetch").start()
            else:
                os.eventfd_write(self.wake_fd, 1)

    def stop(self) -> None:
        with self.lock:
            self.is_stopped = True
            self.queue.clear()
            if self.wake_fd >= 0:
                os.eventfd_write(self.wake_fd, 1)

    def end(self, *, idle: bool) -> bool:
        """Return whether the thread may end: nothing was submitted meanwhile."""
        with self.lock:
            if self.queue or not (idle or self.is_stopped):
                return False
            os.close(self.wake_fd)
            self.wake_fd = -1
            return True


def _run(state: _State) -> None:
    loop = _Loop(state)
    try:
        while loop.step():
            pass
    finally:
        loop.close()


class _Loop:
    """The requests under way, driven by the readiness of their sockets."""

    def __init__(self, state: _State) -> None:
        import pycurl

        self._state, self._curl = state, pycurl
        self._epoll = select.epoll()
        self._epoll.register(state.wake_fd, select.EPOLLIN)
        self._events = dict[int, int]()  # by socket
        self._due: float | None = None  # time at which libcurl wants to be called
        self._free: list[Any] = []
        self._under_way = dict[Any, tuple[Request, list[bytes], list[bytes], float]]()
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
        state = self._state
        while state.queue and len(self._under_way) < state.limit():
            try:
                request = state.queue.popleft()
            except IndexError:  # stopped in between
                return
            if not request.begin():
                continue
            handle = self._free.pop() if self._free else self._make_handle()
            head: list[bytes] = []
            body: list[bytes] = []
            handle.setopt(self._curl.URL, request.url)
            handle.setopt(self._curl.HTTPHEADER, list(request.headers))
            handle.setopt(self._curl.RANGE, f"{request.start}-{request.start + request.size - 1}")
            handle.setopt(self._curl.HEADERFUNCTION, head.append)
            handle.setopt(self._curl.WRITEFUNCTION, body.append)
            handle.setopt(self._curl.MAXFILESIZE_LARGE, max(request.size, _BUFFER_BYTES))
            self._under_way[handle] = request, head, body, time.monotonic()
            self._multi.add_handle(handle)

    def _make_handle(self) -> Any:
        curl, handle = self._curl, self._curl.Curl()
        for option, value in (
            (curl.NOSIGNAL, 1),
            (curl.HTTP_VERSION, curl.CURL_HTTP_VERSION_1_1),  # requests that share a connection share its rate
            (curl.BUFFERSIZE, _BUFFER_BYTES),
            (curl.CONNECTTIMEOUT, CONNECT_TIMEOUT_S),
            (curl.LOW_SPEED_LIMIT, STALLED_BYTES_PER_S),
            (curl.LOW_SPEED_TIME, STALLED_S),
            (curl.PROTOCOLS, curl.PROTO_HTTP | curl.PROTO_HTTPS),
            (curl.REDIR_PROTOCOLS, curl.PROTO_HTTP | curl.PROTO_HTTPS),
            (curl.FOLLOWLOCATION, 1),
            (curl.MAXREDIRS, _MAX_REDIRECTS),
            (curl.NOPROGRESS, 1),
        ):
            handle.setopt(option, value)
        if self._state.ca_bundle:
            handle.setopt(curl.CAINFO, self._state.ca_bundle)
        return handle

    def _take_finished(self) -> None:
        while True:
            more, good, bad = self._multi.info_read()
            for handle in (*good, *(each[0] for each in bad)):
                request, head, body, begun = self._under_way.pop(handle)
                status = handle.getinfo(self._curl.RESPONSE_CODE) if handle in good else 0
                self._multi.remove_handle(handle)
                self._free.append(handle)
                data = (body[0] if len(body) == 1 else b"".join(body)) if status == 206 else b""
                request.finish(Answer(status, _parse(head), data, time.monotonic() - begun))
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


def _parse(lines: list[bytes]) -> dict[bytes, bytes]:
    """Return the headers of the last answer."""
    found: dict[bytes, bytes] = {}
    for line in lines:
        if line.startswith(b"HTTP/"):
            found.clear()
            continue
        name, _, value = line.partition(b":")
        found[name.lower()] = value.strip()
    return found
