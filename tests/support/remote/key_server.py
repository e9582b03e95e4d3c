"""A server on this machine that serves one object by S3's protocol to requests with valid keys in the right region."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY = b"content of the object"


@dataclass
class KeyServer:
    """Serve BODY at every path of `url`.

    Attributes:
        keys: the names of keys that are valid; empty for all.
        region: region of all buckets; "" for any.
        refusal: (status, code, text after the code in the body) for requests in another region.
        seen: method, key and region of each request.
    """

    url: str = ""
    keys: set[str] = field(default_factory=set)
    region: str = ""
    refusal: tuple[int, str, str] = (400, "AuthorizationHeaderMalformed", "")
    seen: list[tuple[str, str, str]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: KeyServer

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        state = self.state
        signed = re.search(r"Credential=([^/]*)/\d+/([^/]*)/s3", self.headers.get("Authorization", ""))
        key, region = (signed[1], signed[2]) if signed else ("", "")
        state.seen.append((self.command, key, region))
        headers = {"x-amz-bucket-region": state.region} if state.region else {}
        if state.region and region != state.region:
            status, code, more = state.refusal
            return self._say(status, f"<Error><Code>{code}</Code>{more}</Error>".encode(), headers)
        if state.keys and key not in state.keys:
            return self._say(400, b"<Error><Code>ExpiredToken</Code></Error>", headers)
        if "list-type=2" in self.path:
            entry = f"<Key>a</Key><Size>{len(BODY)}</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            text = f"<IsTruncated>false</IsTruncated><Contents>{entry}</Contents>"
            return self._say(200, f"<ListBucketResult>{text}</ListBucketResult>".encode(), headers)
        headers |= {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        body, wanted = BODY, self.headers.get("Range")
        if wanted:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            body = BODY[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{first + len(body) - 1}/{len(BODY)}"
        return self._say(206 if wanted else 200, body, headers)

    do_HEAD = do_GET

    def _say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextlib.contextmanager
def serve_keys() -> Iterator[KeyServer]:
    """Start a server."""
    state = KeyServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
