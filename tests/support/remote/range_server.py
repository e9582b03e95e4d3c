"""An HTTP server on this machine that serves ranges of files and fails on request."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

# (path, number of the request, from 1) -> status to answer with instead, or one of these.
Fault = Callable[[str, int], int]
_PIECE = 64 << 10  # bytes sent between two checks of the rate limit
# Half of the body, a byte every 50 ms, the whole object with status 200, no answer before the server stops.
USUAL, CUT, TRICKLE, WHOLE, HANG = 0, -1, -2, -3, -4


@dataclass
class RangeServer:
    """Serve the files of `root`; `url` ends without a slash.

    Attributes:
        delay_s: seconds that each answer waits.
        bytes_per_s: limit for all answers together; 0 for no limit.
        fault: decides which requests fail.
        error_body: body of the answers that fail.
        error_headers: headers of these.
        page: number of names in a page of a listing.
        etags: path -> ETag to send instead of the file's own; "" for none.
        has_dates: whether answers contain the modification time.
        watch: called with the path and query of each request.
        requests: counts by method.
        num_bytes: bytes of the bodies sent.
        stop: closes the port; open connections continue.
        stopped: whether the port was closed.
    """

    root: Path
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    fault: Fault | None = None
    error_body: bytes = b""
    error_headers: dict[str, str] = field(default_factory=dict)
    page: int = 1000
    etags: dict[str, str] = field(default_factory=dict)
    has_dates: bool = True
    watch: Callable[[str], object] = lambda target: None
    requests: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0
    most_at_once: int = 0
    url: str = ""
    stop: Callable[[], None] = lambda: None
    stopped: threading.Event = field(default_factory=threading.Event)
    _at_once: int = 0
    _free_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> int:
        with self._lock:
            self.requests["all"] += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            return self.requests["all"]

    def wait_for_turn(self, size: int) -> None:
        """Wait until a link of `bytes_per_s` has sent all earlier bytes and these `size` bytes."""
        if self.bytes_per_s:
            with self._lock:
                self._free_at = max(self._free_at, time.perf_counter()) + size / self.bytes_per_s
                wait_s = self._free_at - time.perf_counter()
            time.sleep(max(0.0, wait_s))

    def count(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes

    def end(self) -> None:
        with self._lock:
            self._at_once -= 1


@functools.lru_cache(maxsize=16)
def _content(file: Path, mtime_ns: int) -> tuple[memoryview, str]:
    data = file.read_bytes()
    return memoryview(data), hashlib.md5(data).hexdigest()


def _list_bucket(bucket: Path, query: dict[str, list[str]], page: int) -> bytes:
    """Answer ListObjectsV2 of S3 for the files of a folder, in pages of `page` names."""
    prefix, delimiter, after, token = (
        query.get(name, [""])[0] for name in ("prefix", "delimiter", "start-after", "continuation-token")
    )
    keys = sorted(str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file())
    keys = [key for key in keys if key.startswith(prefix)]
    inner = {key for key in keys if delimiter and delimiter in key[len(prefix) :]}
    folders = {prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter for key in inner}
    names = sorted(name for name in {*folders, *keys} - inner if name > max(after, token))
    text = "<IsTruncated>false</IsTruncated>"
    if len(names) > page:
        names = names[:page]
        text = "<IsTruncated>true</IsTruncated>"
        text += f"<NextContinuationToken>{escape(names[-1])}</NextContinuationToken>"
    for key in names:
        if key in folders:
            text += f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>"
        else:  # its ETag without quotes, as in Azure's lists
            file = bucket / key
            data, digest = _content(file, file.stat().st_mtime_ns)
            text += f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>{digest}</ETag>"
            text += "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
    return f"<ListBucketResult>{text}</ListBucketResult>".encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: RangeServer

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        number, has_ended = self.state.begin(), False
        self.state.watch(self.path)
        try:
            time.sleep(self.state.delay_s)
            path, _, query = self.path.partition("?")
            path = unquote(path)
            status = self.state.fault(path, number) if self.state.fault is not None else 0
            if status == HANG:
                self.state.stopped.wait()
                self.close_connection = True
                return
            file = self.state.root / path.lstrip("/")
            if status <= 0 and "list-type=2" in query:
                body = _list_bucket(file, parse_qs(query), self.state.page)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if status == CUT else body)
                self.close_connection = status == CUT
                return
            if status <= 0 and not file.is_file():
                status = 404
            if status > 0:
                self.send_response(status)
                self.send_header("Content-Length", str(len(self.state.error_body)))
                for name, text in self.state.error_headers.items():
                    self.send_header(name, text)
                self.end_headers()
                if with_body:
                    self.wfile.write(self.state.error_body)
                return
            data, digest = _content(file, file.stat().st_mtime_ns)
            start, end = 0, len(data)
            wanted = "" if status == WHOLE else self.headers.get("Range", "")
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, end = int(first), min(len(data), int(last or len(data)) + 1)
            self.send_response(206 if wanted else 200)
            etag = self.state.etags.get(path, digest)
            if etag:
                self.send_header("ETag", f'"{etag}"')
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            self.send_header("Content-Length", str(end - start))
            if self.state.has_dates:
                self.send_header("Last-Modified", self.date_time_string(int(file.stat().st_mtime)))
            self.end_headers()
            if with_body:
                body = data[start:end] if status != CUT else data[start : start + (end - start) // 2]
                if status == TRICKLE:
                    self._trickle(body)
                for begin in range(0, len(body), _PIECE):
                    self.state.wait_for_turn(len(body[begin : begin + _PIECE]))
                    if begin + _PIECE >= len(body):  # count before the client has everything and a test looks
                        self.state.count(len(body))
                        self.state.end()
                        has_ended = True
                    self.wfile.write(body[begin : begin + _PIECE])
                if status == CUT:
                    self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            if not has_ended:
                self.state.end()

    def _trickle(self, body: bytes) -> None:
        for begin in range(len(body)):
            self.wfile.write(body[begin : begin + 1])
            time.sleep(0.05)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *arguments: Any) -> None:
        self._connections: set[Any] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._connections.discard(request)

    def end_connections(self) -> None:
        """End all connections and their threads: clients keep idle ones for a minute, and later tests count both."""
        deadline = time.monotonic() + 60
        while self._connections and time.monotonic() < deadline:
            for connection in list(self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            time.sleep(0.01)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


def s3_environment(url: str) -> dict[str, str]:
    """Return environment variables that direct S3 clients to the server at `url`: buckets are folders of its root."""
    keys = {"AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": "a-secret-key", "AWS_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": url, **keys}


@contextlib.contextmanager
def serve_ranges(root: Path, port: int = 0) -> Iterator[RangeServer]:
    """Serve the files of `root` on `port` of the loopback interface, or on a free one."""
    state = RangeServer(root)
    server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"state": state}))
    server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()

    def stop() -> None:
        state.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()

    state.stop = stop
    try:
        yield state
    finally:
        stop()
        server.end_connections()
