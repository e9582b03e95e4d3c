"""Requests by libcurl: their number at once, what is accepted as an answer, and what is never sent."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from forked_child import ForkedChild
from range_server import HANG, USUAL, RangeServer
from remote_photos import open_loader, open_remote
from served_rows import serve

from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.remote import curl_requests, fetcher
from penstock.loaders.data.remote.clients import client_of
from penstock.loaders.data.remote.curl_requests import Answer, CurlRequests, Job, has_curl
from penstock.loaders.data.remote.fetcher import Fetcher, Range
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.remote.obstore_client import ObstoreClient
from penstock.loaders.data.remote.plain_requests import PlainRequests, ask_pause_s
from penstock.loaders.data.requests import request_retries
from penstock.loaders.data.requests.pace import Pace
from penstock.loaders.data.samples.version import Version
from penstock.pipelines.errors import LoaderError

NUM_PHOTOS = 24
DATA = bytes(range(256)) * 40
ETAG = '"right"'
Respond = Callable[[BaseHTTPRequestHandler, int, int], bool]  # with start and end of the range -> whether it answered

pytestmark = pytest.mark.skipif(not has_curl(), reason="pycurl is not installed")


@contextmanager
def serve_data(respond: Respond = lambda handler, start, end: False) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Serve DATA at every path; yield the URL, and the headers of all requests. `respond` may answer otherwise."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

        def do_GET(self) -> None:
            seen.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
            start, end = map(int, self.headers.get("Range", "bytes=0-0").removeprefix("bytes=").split("-"))
            if not respond(self, start, end + 1):
                say(self, 206, DATA[start : end + 1], start)

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def say(handler: BaseHTTPRequestHandler, status: int, body: bytes, start: int = 0, **headers: str) -> bool:
    """Answer with a body that is said to begin at `start` of DATA."""
    usual = {"ETag": ETAG, "Content-Length": str(len(body))}
    if status == 206:
        usual["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(DATA)}"
    handler.send_response(status)
    for name, value in {**usual, **{name.replace("_", "-"): value for name, value in headers.items()}}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(body)
    return True


class WaitingJob(Job):
    """A job whose answer can be waited for."""

    def __init__(self, url: str, headers: tuple[str, ...] = (), start: int = 3, size: int = 100) -> None:
        super().__init__(url, headers, start, size)
        self.has_begun, self._done, self._answers = False, threading.Event(), list[Answer]()

    def begin(self) -> bool:
        self.has_begun = True
        return True

    def finish(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._done.set()

    def wait(self) -> Answer:
        assert self._done.wait(60)
        return self._answers[0]


def request(url: str, headers: tuple[str, ...] = ()) -> Answer:
    job, requests = WaitingJob(url, headers), CurlRequests(lambda: 4)
    requests.submit([job])
    return job.wait()


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert is_true()


def is_right(answer: Answer) -> bool:
    right = Version.of_object(ETAG, None, len(DATA))
    return PlainRequests().is_right(answer, 3, 100, right)


# ---- what is an answer ----


def test_a_right_answer_is_accepted_also_after_a_redirect_to_another_host() -> None:
    with serve_data() as (url, _):
        answer = request(f"{url}/a")
        assert is_right(answer)
        assert answer.data == DATA[3:103]

        def elsewhere(handler: BaseHTTPRequestHandler, start: int, end: int) -> bool:
            return say(handler, 302, b"", Location=f"{url}/b", ETag='"of the redirect"')

        with serve_data(elsewhere) as (other, _):
            assert is_right(request(f"{other}/a"))


WRONG: dict[str, Respond] = {
    "another range": lambda handler, start, end: say(handler, 206, DATA[start + 1 : end + 1], start + 1),
    "fewer bytes": lambda handler, start, end: say(handler, 206, DATA[start : end - 1], start),
    "more bytes": lambda handler, start, end: say(handler, 206, DATA[start : end + 1], start),
    "the whole object": lambda handler, start, end: say(handler, 200, DATA),
    "another version": lambda handler, start, end: say(handler, 206, DATA[start:end], start, ETag='"other"'),
    "no version": lambda handler, start, end: say(handler, 206, DATA[start:end], start, ETag=""),
    "an encoding": lambda handler, start, end: say(handler, 206, DATA[start:end], start, Content_Encoding="br"),
    "no place": lambda handler, start, end: say(handler, 206, DATA[start:end], start, Content_Range=""),
    "a wrong place": lambda handler, start, end: say(handler, 206, DATA[start:end], start, Content_Range="bytes x/y"),
    "a refusal": lambda handler, start, end: say(handler, 403, b"no"),
    "a cut body": lambda handler, start, end: say(handler, 206, DATA[start:end], start, Content_Length="200"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_not_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curl_requests, "STALLED_S", 1)
    with serve_data(WRONG[name]) as (url, _):
        assert not is_right(request(f"{url}/a"))


def test_an_encoded_answer_does_not_count_as_a_busy_server() -> None:
    """Some objects of S3 are stored with an encoding: the store reads them, and nothing is slowed down."""
    with serve_data(WRONG["an encoding"]) as (url, _):
        answer, fetching = request(f"{url}/a"), open_fetcher(f"{url}/a")
        assert (answer.status, answer.data) == (206, b"")
        limit = fetching._pace.limit
        assert bytes(fetching.take(0)) == DATA[:100]
        assert (fetching._pace.limit, fetching._pause_s, fetching._store.retries) == (limit, 0.0, 0)


def test_a_whole_object_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without ranges sends gigabytes: the request ends at its headers, and has no body."""
    sent: list[int] = []

    def endless(handler: BaseHTTPRequestHandler, start: int, end: int) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 33))
        handler.end_headers()
        try:
            while True:
                sent.append(handler.wfile.write(bytes(1 << 20)))
        except OSError:
            handler.close_connection = True
        return True

    with serve_data(endless) as (url, _):
        answer = request(f"{url}/a")
    assert (answer.status, answer.data) == (0, b"")
    assert sum(sent) < 64 << 20


# ---- what is sent ----


def test_headers_are_sent_to_their_own_host_only() -> None:
    with serve_data() as (other, others):

        def elsewhere(handler: BaseHTTPRequestHandler, start: int, end: int) -> bool:
            return say(handler, 302, b"", Location=f"{other}/b")

        with serve_data(elsewhere) as (url, own):
            answer = request(f"{url}/a", ("X-Key: secret",))
        assert answer.status == 302
        assert own[0]["x-key"] == "secret"
        assert own[0]["range"] == "bytes=3-102"
        assert not others


def test_headers_of_one_request_are_not_sent_with_the_next() -> None:
    with serve_data() as (url, seen):
        requests = CurlRequests(lambda: 1)
        jobs = [WaitingJob(f"{url}/a", headers) for headers in (("X-Key: a",), (), ("X-Other: b",))]
        requests.submit(jobs)
        assert all(is_right(job.wait()) for job in jobs)
    assert [(one.get("x-key"), one.get("x-other")) for one in seen] == [("a", None), (None, None), (None, "b")]


def test_no_more_requests_at_once_than_the_limit(server: RangeServer, photos: ImageFolder) -> None:
    server.delay_s = 0.02
    url, limit = f"{server.url}/0.bin", 3
    requests = CurlRequests(lambda: limit)
    jobs = [WaitingJob(url, start=at, size=1) for at in range(12)]
    requests.submit(jobs)
    assert [job.wait().status for job in jobs] == 12 * [206]
    assert server.most_at_once <= limit
    more = [WaitingJob(url, start=at, size=1) for at in range(12)]
    limit = 6
    requests.submit(more)
    assert [job.wait().status for job in more] == 12 * [206]
    assert 3 < server.most_at_once <= limit


def test_waiting_requests_can_be_dropped(server: RangeServer, photos: ImageFolder) -> None:
    server.fault = lambda path, number: HANG
    requests = CurlRequests(lambda: 1)
    jobs = [WaitingJob(f"{server.url}/0.bin", start=at, size=1) for at in range(3)]
    requests.submit(jobs)
    deadline = time.monotonic() + 60
    while not jobs[0].has_begun and time.monotonic() < deadline:
        time.sleep(0.01)
    requests.drop_waiting()
    server.stop()
    jobs[0].wait()
    assert [job.has_begun for job in jobs] == [True, False, False]


def test_the_thread_ends_with_its_owner_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "penstock-fetch"]

    def wait_for_end(before: list[threading.Thread]) -> None:
        deadline = time.monotonic() + 60
        while set(threads()) - set(before) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not set(threads()) - set(before)

    before = threads()
    with serve_data() as (url, _):
        monkeypatch.setattr(curl_requests, "_IDLE_S", 0.05)
        requests = CurlRequests(lambda: 1)
        for _ in range(2):  # the thread ends when there is nothing to do
            job = WaitingJob(f"{url}/a")
            requests.submit([job])
            assert is_right(job.wait())
            wait_for_end(before)
        monkeypatch.setattr(curl_requests, "_IDLE_S", 600.0)
        job = WaitingJob(f"{url}/a")
        requests.submit([job])
        job.wait()
        assert set(threads()) - set(before)
        del requests
        gc.collect()
        wait_for_end(before)


# ---- the fetcher ----


def test_what_libcurl_cannot_read_is_read_by_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer to each request is wrong in another way; the second one, to the store, is right."""
    monkeypatch.setattr(fetcher, "MAX_GAP_BYTES", 0)  # a request for each sample
    monkeypatch.setattr(curl_requests, "STALLED_S", 1)
    wrong = iter(list(WRONG.values()))
    firsts = set[int]()

    def respond(handler: BaseHTTPRequestHandler, start: int, end: int) -> bool:
        if start in firsts or handler.command == "HEAD":
            return False
        firsts.add(start)
        return next(wrong, lambda *_: False)(handler, start, end)

    with serve_data(respond) as (url, _):
        version, store = Version.of_object(ETAG, None, len(DATA)), ObjectStore()
        fetching = Fetcher(store, lambda at: Range(at, f"{url}/a", 200 * at, 100, version), Pace(4, 1 << 20), 1 << 20)
        fetching.announce(range(len(WRONG) + 3))
        for at in range(len(WRONG) + 3):
            assert bytes(fetching.take(at)) == DATA[200 * at : 200 * at + 100]
    assert next(wrong, None) is None


def test_a_forked_process_reads_and_its_parent_goes_on(server: RangeServer, photos: ImageFolder) -> None:
    """The fork has none of the threads, and its requests do not disturb those of the parent, which are under way."""
    source = open_remote(server, photos)
    source.read(0)
    server.delay_s = 0.2
    source.announce(np.arange(5, 20))
    child = ForkedChild(lambda _: [len(source.read(index)) for index in range(10)])
    assert child.result() == [len(photos.read(index)) for index in range(10)]
    assert [source.read(index) for index in range(20)] == [photos.read(index) for index in range(20)]


def test_more_is_fetched_ahead_only_where_a_loader_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "_FIRST_AHEAD", 1000)
    with serve_data(lambda handler, start, end: time.sleep(wait_s) or False) as (url, _):  # type: ignore[func-returns-value]
        version = Version.of_object(ETAG, None, len(DATA))
        for wait_s, room in ((0.0, 1000), (0.02, 4000)):
            places = Pace(4, 1 << 20), 4000
            fetching = Fetcher(ObjectStore(), lambda at: Range(at, f"{url}/a", at % 50, 100, version), *places)
            ahead = 0
            for at in range(80):
                while fetching.has_room:
                    fetching.announce([ahead])
                    ahead += 1
                if not wait_s:  # a slow consumer
                    wait_until(lambda now=fetching: all(one.is_done for one in now._coming.values()))  # type: ignore[misc]
                assert len(fetching.take(at)) == 100
            assert fetching._room == room


def open_fetcher(url: str) -> Fetcher:
    version = Version.of_object(ETAG, None, len(DATA))
    return Fetcher(ObjectStore(), lambda at: Range(at, url, 200 * at, 100, version), Pace(4, 1 << 20), 1 << 20)


@pytest.mark.parametrize("what", ["epoll", "thread", "eventfd", "pool", "keys"])
def test_nobody_waits_for_what_could_not_be_requested(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, no descriptor or thread is left, or keys cannot be renewed while an address is signed."""
    failures = list[str]()
    monkeypatch.setattr(threading, "excepthook", lambda about: None)  # reports the end of the thread

    def fail_once(
        holder: Any, name: str, error: Exception, *, is_wanted: Callable[..., bool] = lambda *_: True
    ) -> None:
        usual = getattr(holder, name)

        def failing(*arguments: Any) -> Any:
            if failures or not is_wanted(*arguments):
                return usual(*arguments)
            failures.append(name)
            raise error

        monkeypatch.setattr(holder, name, failing)

    def is_fetching(thread: threading.Thread) -> bool:
        return thread.name == "penstock-fetch"

    with serve_data() as (url, _):
        fetching = open_fetcher(f"{url}/a")
        too_many, no_thread = OSError(24, "Too many open files"), RuntimeError("can't start new thread")
        if what == "thread":
            fail_once(threading.Thread, "start", no_thread, is_wanted=is_fetching)
        elif what == "pool":
            monkeypatch.setattr(fetching, "_may_curl", False)
            fail_once(fetching._threads, "submit", no_thread)
        elif what == "keys":
            fail_once(ObstoreClient, "plain_request", RuntimeError("a provider's error"))
        else:
            fail_once(curl_requests.select if what == "epoll" else curl_requests.os, what, too_many)
        if what == "pool":
            with pytest.raises(RuntimeError, match="new thread"):
                fetching.announce([0])
        else:
            fetching.announce([0])
        taken = dict[int, bytes]()
        taker = threading.Thread(target=lambda: taken.update((at, bytes(fetching.take(at))) for at in range(3)))
        taker.daemon = True
        taker.start()
        taker.join(20)
    assert taken == {at: DATA[200 * at : 200 * at + 100] for at in range(3)}
    assert failures


def test_forgotten_requests_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause is long, and repetitions may last for minutes: closing a loader and Ctrl-C must not wait for them."""
    monkeypatch.setattr(request_retries, "random", SimpleNamespace(uniform=lambda low, high: 60.0))
    with serve_data(lambda handler, start, end: say(handler, 503, b"")) as (url, seen):
        fetching = open_fetcher(f"{url}/a")
        fetching.announce(range(3))
        deadline = time.monotonic() + 20
        while not fetching._store.retries > 1 and time.monotonic() < deadline:  # by libcurl and by the store
            time.sleep(0.01)
        fetching.forget()
        begun, before = time.monotonic(), len(seen)
        fetching._threads._pool.shutdown()
        assert time.monotonic() - begun < 20
        assert len(seen) == before


EXIT = """
import sys, threading, time
from types import SimpleNamespace
from penstock.loaders.data.remote import fetcher
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.requests import request_retries
from concurrent.futures import ThreadPoolExecutor

request_retries.random = SimpleNamespace(uniform=lambda low, high: 200.0)
store = ObjectStore()
ThreadPoolExecutor(1).submit(store.read, sys.argv[1], 0, 10)
while not store.retries:
    time.sleep(0.01)
"""


def test_the_interpreter_ends_while_requests_fail() -> None:
    with serve_data(lambda handler, start, end: say(handler, 503, b"")) as (url, _):
        assert subprocess.run([sys.executable, "-c", EXIT, f"{url}/a"], check=False, timeout=60).returncode == 0


def test_a_server_is_asked_for_its_pause_without_sending_headers_to_another_host() -> None:
    with serve_data() as (other, others):

        def elsewhere(handler: BaseHTTPRequestHandler, start: int, end: int) -> bool:
            return say(handler, 302, b"", Location=f"{other}/b")

        with serve_data(elsewhere) as (url, own):
            client = client_of(f"{url}/a", (("Authorization", "secret"),))
            assert ask_pause_s(client, f"{url}/a", OSError("503")) is None
        assert own[0]["authorization"] == "secret"
        assert not others


def test_without_pycurl_the_store_reads_everything(
    server: RangeServer, photos: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_loader(open_remote(server, photos)) as loader:
        expected = serve(loader)
    monkeypatch.setattr(fetcher, "has_curl", lambda: False)
    monkeypatch.setattr(fetcher, "CurlRequests", None)
    with open_loader(open_remote(server, photos)) as loader:
        assert serve(loader) == expected


def test_a_replaced_object_is_refused(server: RangeServer, photos: ImageFolder) -> None:
    source = open_remote(server, photos)
    server.etags["/0.bin"] = '"replaced"'
    with pytest.raises(LoaderError, match="was replaced") as caught:
        [source.read(index) for index in range(NUM_PHOTOS)]
    assert caught.value.code == "E-CHANGED"
    server.fault = lambda path, number: USUAL
