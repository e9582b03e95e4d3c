"""HTTP URLs are sent as written, and read where only GET is allowed; causes of failures are named."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote, unquote

import numpy as np
import pytest
from odd_images import encoded
from PIL import Image

from penstock.loaders import LoaderError, open_source
from penstock.loaders.data.remote.clients import client_of
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.requests import request_retries


def png(level: int) -> bytes:
    return encoded(Image.new("L", (2, 2), level), "PNG")


class Site:
    """Serve `files` by their paths exactly as sent.

    `answer` may return a status for (method, path), `tag` returns the ETag for a method, `has_size` whether answers to
    a method have their length.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answer: Callable[[str, str], int] = lambda method, path: 0
        self.tag: Callable[[str], str] = lambda method: '"1"'
        self.has_size: Callable[[str], bool] = lambda method: True
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *values: object) -> None:
                pass

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                data, status = site.files.get(path, b""), 200 if path in site.files else 404
                status = site.answer(self.command, self.path) or status
                total = len(data)
                if status == 200 and "Range" in self.headers:
                    first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                    data, status = data[int(first) : int(last or total) + 1], 206 if int(first) < total else 416
                self.send_response(status)
                if status == 206:
                    self.send_header("Content-Range", f"bytes {first}-{int(first) + len(data) - 1}/{total}")
                self.send_header("ETag", site.tag(self.command))
                if site.has_size(self.command):
                    self.send_header("Content-Length", str(len(data) if status < 300 else 0))
                else:
                    self.close_connection = True
                self.end_headers()
                if self.command == "GET" and status < 300:
                    self.wfile.write(data)

            do_HEAD = do_GET

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.server.shutdown()
    site.server.server_close()


def test_random_urls_are_sent_as_written(site: Site) -> None:
    """40 paths of percent-encoded and plain characters, next to files with the decoded paths."""
    rng = np.random.default_rng(0)
    pieces = [
        "a",
        "b",
        "%20",
        "%2F",
        "%2B",
        "+",
        "%25",
        "%3F",
        "%23",
        "~",
        "-",
        "%C3%A4",
        "=",
        "&",
        "@",
        "%40",
        ":",
        ".",
    ]
    paths = {f"/o/{''.join(rng.choice(pieces, rng.integers(1, 8)))}x.png" for _ in range(40)}
    for number, path in enumerate(sorted(paths)):
        site.files.setdefault(quote(unquote(path)), png(255))
        site.files[path] = png(number)
    store = ObjectStore()
    for number, path in enumerate(sorted(paths)):
        url, size = site.url + path, len(site.files[path])
        assert store.stat(url).size == size
        for address in (f"{url}?alt=media&t=a%2Fb", url):
            assert bytes(store.read(address, 0, size).data) == png(number), path
            assert client_of(address).plain_request(address) == (address, {})


@pytest.mark.parametrize("status", [403, 405, 501])
def test_one_byte_is_requested_from_a_server_that_refuses_head(site: Site, status: int) -> None:
    site.files = {f"/{number}.png": png(number) for number in range(3)}
    site.answer = lambda method, path: status if method == "HEAD" else 0
    signed = [(f"{site.url}/{number}.png?X-Amz-Signature=secret", number) for number in range(3)]
    source = open_source(signed)
    assert [source.read(index) for index in range(3)] == [png(number) for number in range(3)]
    site.answer = lambda method, path: 403
    with pytest.raises(LoaderError, match="E-ACCESS") as caught:
        open_source([(f"{site.url}/0.png?X-Amz-Signature=another", 0)])
    assert "another" not in str(caught.value)


def test_a_signed_url_is_never_asked_by_head(site: Site) -> None:
    """It is signed for GET. Each answer counts: a refused one counts against limits."""
    asked: list[str] = []
    site.answer = lambda method, path: asked.append(method) or 0
    site.files = {"/a.png": png(1), "/empty": b""}
    for query in ("X-Amz-Signature=1", "a=b&X-Goog-Signature=1", "Expires=1&Signature=1", "sv=1&sig=1"):
        assert ObjectStore().stat(f"{site.url}/a.png?{query}").size == len(png(1))
        assert ObjectStore().stat(f"{site.url}/empty?{query}").size == 0
    assert set(asked) == {"GET"}
    ObjectStore().stat(f"{site.url}/a.png?design=1")
    assert asked[-1] == "HEAD"


def test_one_byte_is_requested_if_an_answer_to_head_has_no_size(site: Site) -> None:
    site.files, site.has_size = {"/a.png": png(1)}, lambda method: method == "GET"
    assert ObjectStore().stat(f"{site.url}/a.png").size == len(png(1))


@pytest.mark.parametrize("weak", ["HEAD", "GET"])
def test_an_etag_that_is_weak_in_some_answers_is_the_same_version(site: Site, weak: str) -> None:
    site.files = {f"/{number}.png": png(number) for number in range(3)}
    site.tag = lambda method: 'W/"1"' if method == weak else '"1"'
    source = open_source([(f"{site.url}/{number}.png", number) for number in range(3)])
    assert [source.read(index) for index in range(3)] == [png(number) for number in range(3)]
    site.tag = lambda method: 'W/"2"'
    with pytest.raises(LoaderError, match="E-CHANGED"):
        source.read(0)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_requests_to_a_busy_server_are_retried_until_the_deadline(
    site: Site, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.05)
    site.files, answered = {"/a.png": png(1)}, list[float]()

    def answer(method: str, path: str) -> int:
        answered.append(time.monotonic())
        return status if answered[-1] - answered[0] < 0.5 else 0

    site.answer = answer
    assert ObjectStore().stat(f"{site.url}/a.png").size == len(png(1))
    assert len(answered) > 5


def test_causes_of_failures_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_retries.Deadline, "allows_attempt", lambda *_: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    refused, nowhere = f"http://127.0.0.1:{closed}/a.tar", "http://no-such-host.invalid/a.tar"
    for url, cause in ((refused, "E-READ.*refused"), (nowhere, "E-ACCESS.*DNS")):
        with pytest.raises(LoaderError, match=cause):
            open_source(url)
