"""A web server on this machine that also speaks a part of S3; a function may replace its answers by faulty ones."""

from __future__ import annotations

import contextlib
import gzip
import math
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
_PAGE = 10  # keys per page of a listing
_PIECE = 1 << 14  # bytes sent between two checks of the limit
Fault = Callable[["Ask", "Web"], Any]  # answers a request and returns something true, or leaves it to the server


class Ask(BaseHTTPRequestHandler):
    """A request."""

    protocol_version = "HTTP/1.1"
    timeout = 300
    web: Web

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        """Answer, with a fault or right."""
        self.web.count()
        try:
            if not self.web.fault(self, self.web):
                self.give()
        except OSError:
            self.close_connection = True

    do_HEAD = do_GET

    def say(self, status: int, body: bytes = b"", **headers: str) -> bool:
        """Answer with a status; the names of headers have _ for -."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.web.send(self.wfile, body)
        return True

    def error(self, status: int, code: str, message: str = "", **headers: str) -> bool:
        """Answer with an error of S3."""
        return self.say(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode(), **headers)

    def reset(self) -> bool:
        """Reset the connection instead of closing it."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.connection.close()
        return True

    def hang(self) -> bool:
        """Wait without an answer until the client closes the connection."""
        with contextlib.suppress(OSError):
            self.connection.recv(1)
        self.close_connection = True
        return True

    def give(
        self,
        *,
        files: Mapping[str, bytes] | None = None,
        tag: str | None = '"a"',
        date: str | None = DATE,
        shift: int = 0,
        fewer: int = 0,
        whole: bool = False,
        packed: bool = False,
        chunk: int = 0,
        cut: float = 1.0,
        reset: bool = False,
        close: bool = False,
        pause_s: float = 0.0,
    ) -> bool:
        """Answer with an object or a range of it.

        files: other objects. tag, date: its ETag and time, or none. shift: send the range that lies so many bytes
        further on, and say so. fewer: bytes left out at the end. whole: ignore the range. packed: compress the body.
        chunk: send it in chunks of this size, without a length. cut: part of the body that is sent before the
        connection ends. reset: end it by a reset. close: end it afterwards. pause_s: send byte by byte with pauses.
        """
        path, _, query = self.path.partition("?")
        if "list-type=2" in query:
            return self.say(200, self.web.list(path, parse_qs(query)), Content_Type="application/xml")
        data = (files or self.web.files).get(unquote(path))
        if data is None:
            return self.error(404, "NoSuchKey")
        total, headers, status, start = len(data), {"Accept-Ranges": "bytes"}, 200, 0
        wanted = "" if whole else self.headers.get("Range", "").removeprefix("bytes=")
        if wanted:
            first, _, last = wanted.partition("-")
            start = int(first) if first else total - int(last)
            start, end = start + shift, (min(int(last), total - 1) if first and last else total - 1) + shift
            if start >= total:
                return self.say(416, Content_Range=f"bytes */{total}")
            data, status = data[start : end + 1], 206
            headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{total}"
        data = data[: len(data) - fewer] if self.command == "GET" else data
        if packed:
            data, headers["Content-Encoding"] = gzip.compress(data, 1), "gzip"
        headers |= {"ETag": tag} if tag else {}
        headers |= {"Last-Modified": date} if date else {}
        headers |= {"Transfer-Encoding": "chunked"} if chunk else {"Content-Length": str(len(data))}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return True
        if chunk:
            pieces = [data[k : k + chunk] for k in range(0, len(data), chunk)]
            data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
        if pause_s:
            for byte in data:
                self.wfile.write(bytes([byte]))
                time.sleep(pause_s)
        else:
            self.web.send(self.wfile, data[: int(len(data) * cut)])
        if cut < 1 or close:
            self.close_connection = True
        return self.reset() if reset else True


class Web:
    """Serve `files` (path: content) until the process ends.

    Attributes:
        fault: sees each request first.
        other: files for faults that replace the data.
        url: without a slash at its end.
        running: whether a loader asks for samples; until then it opens the data.
        number: of the current request, counted from 1 since `running`.
        num_bytes: bytes of bodies sent since `running`.
        bytes_per_s: limit of all answers together since `running`, or 0.
    """

    def __init__(self, files: dict[str, bytes], fault: Fault = lambda ask, web: None, bytes_per_s: float = 0) -> None:
        self.files, self.fault, self.bytes_per_s = files, fault, bytes_per_s
        self.other = dict[str, bytes]()
        self.running, self.number, self.num_bytes, self._free_at = False, 0, 0, 0.0
        self._lock, self._begun = threading.Lock(), dict[str, float]()
        self._port, self._tls = 0, None
        self._connections = set[socket.socket]()

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"{'https' if self._tls else 'http'}://{'localhost' if self._tls else '127.0.0.1'}:{self._port}"

    def start(self, tls: Path | None = None) -> None:
        """Listen, on the earlier port if there was one. tls: folder for a certificate that nobody trusts."""
        web = self

        class Server(ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 256

            def process_request(self, request: Any, client_address: Any) -> None:
                web._connections.add(request)
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                web._connections.discard(request)
                super().shutdown_request(request)

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignore clients that disconnect."""

        self._server = Server(("127.0.0.1", self._port), type("Ask", (Ask,), {"web": self}))
        self._port = self._server.server_address[1]
        if tls is not None:
            self._tls = tls / "key.pem"
            made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", self._tls]
            subprocess.run(["openssl", *made, "-out", tls / "cert.pem"], check=True, capture_output=True)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "cert.pem", self._tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def outage(self, seconds: float) -> None:
        """End the server and all connections, and start it again on the same port."""

        def run() -> None:
            self._server.shutdown()
            self._server.server_close()
            for connection in list(self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            time.sleep(seconds)
            self.start()

        threading.Thread(target=run, daemon=True).start()

    def count(self) -> None:
        """Count a request."""
        with self._lock:
            self.number += self.running

    def every(self, nth: int) -> bool:
        """Return whether the current request of a running loader is one of every `nth`."""
        return self.running and self.number % nth == 0

    def since(self, name: str, *, running: bool = True) -> float:
        """Return the seconds since the first call with this name; infinite while the loader opens the data."""
        if running and not self.running:
            return math.inf
        return time.monotonic() - self._begun.setdefault(name, time.monotonic())

    def send(self, file: Any, body: bytes) -> None:
        """Send a body at the speed of the line."""
        for begin in range(0, len(body), _PIECE):
            piece = body[begin : begin + _PIECE]
            wait_s = 0.0
            with self._lock:
                if self.running:
                    self.num_bytes += len(piece)
                    if self.bytes_per_s:
                        self._free_at = max(self._free_at, time.monotonic()) + len(piece) / self.bytes_per_s
                        wait_s = self._free_at - time.monotonic()
            time.sleep(wait_s)
            file.write(piece)

    def list(self, path: str, query: dict[str, list[str]]) -> bytes:
        """Return a page of the keys of a bucket, as ListObjectsV2 of S3 does."""
        bucket = f"/{unquote(path).strip('/')}/"
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        found = dict[str, str]()
        for name, data in sorted(self.files.items()):
            key = name.removeprefix(bucket)
            if not name.startswith(bucket) or not key.startswith(prefix):
                continue
            inner, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if cut:
                folder = prefix + inner + delimiter
                found[folder] = f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"
            else:
                text = f"<Key>{key}</Key><Size>{len(data)}</Size><ETag>&quot;a&quot;</ETag>"
                found[key] = f"<Contents>{text}<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        start = int(query.get("continuation-token", ["0"])[0])
        is_cut = len(found) > start + _PAGE
        text = "".join(list(found.values())[start : start + _PAGE])
        text += f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        text += f"<NextContinuationToken>{start + _PAGE}</NextContinuationToken>" if is_cut else ""
        return f"<ListBucketResult>{text}</ListBucketResult>".encode()
