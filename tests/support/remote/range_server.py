"""An HTTP server on this machine that serves files by ranges, and fails as it is told."""

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

# (path, number of the request, from 1) -> status to answer with instead, or one of these.
Fault = Callable[[str, int], int]
_PIECE = 64 << 10  # bytes between two looks at the limit of bytes per second
USUAL, CUT, TRICKLE, WHOLE = 0, -1, -2, -3  # half of the body, a byte every 50 ms, the whole object with status 200


@dataclass
class RangeServer:
    """Serve the files of `root`; `url` ends without a slash.

    Attributes:
        delay_s: seconds that each answer waits.
        bytes_per_s: what all answers together may send; 0 for no limit.
        fault: decides which requests fail.
        etags: path -> ETag to send instead of that of the file's content; "" for none.
        requests: counts by method.
        num_bytes: bytes of the bodies sent.
        stop: closes the port; open connections go on.
    """

    root: Path
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    fault: Fault | None = None
    etags: dict[str, str] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0
    most_at_once: int = 0
    url: str = ""
    stop: Callable[[], None] = lambda: None
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
        """Wait as long as a line of `bytes_per_s` takes for `size` bytes after all that were given to it before."""
        if self.bytes_per_s:
            with self._lock:
                self._free_at = max(self._free_at, time.perf_counter()) + size / self.bytes_per_s
                wait_s = self._free_at - time.perf_counter()
            time.sleep(max(0.0, wait_s))

    def end(self, sent: int) -> None:
        with self._lock:
            self._at_once -= 1
            self.num_bytes += sent


@functools.lru_cache(maxsize=16)
def _content(file: Path, mtime_ns: int) -> tuple[memoryview, str]:
    data = file.read_bytes()
    return memoryview(data), hashlib.md5(data).hexdigest()


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
        number, sent = self.state.begin(), 0
        try:
            time.sleep(self.state.delay_s)
            path = self.path.partition("?")[0]
            status = self.state.fault(path, number) if self.state.fault is not None else 0
            file = self.state.root / path.lstrip("/")
            if status <= 0 and not file.is_file():
                status = 404
            if status > 0:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
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
            self.send_header("Last-Modified", self.date_time_string(int(file.stat().st_mtime)))
            self.end_headers()
            if with_body:
                body = data[start:end] if status != CUT else data[start : start + (end - start) // 2]
                if status == TRICKLE:
                    self._trickle(body)
                for begin in range(0, len(body), _PIECE):
                    self.state.wait_for_turn(len(body[begin : begin + _PIECE]))
                    self.wfile.write(body[begin : begin + _PIECE])
                sent = len(body)
                if status == CUT:
                    self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.state.end(sent)

    def _trickle(self, body: bytes) -> None:
        for begin in range(len(body)):
            self.wfile.write(body[begin : begin + 1])
            time.sleep(0.05)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent about clients that leave."""


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
        server.shutdown()
        server.server_close()
        thread.join()

    state.stop = stop
    try:
        yield state
    finally:
        stop()
