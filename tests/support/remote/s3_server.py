"""An S3 server on this machine: moto in its own process, with the credentials that clients need."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

_PROGRAM = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class S3Server(NamedTuple):
    """A server, and the client that fills it.

    Attributes:
        url: of the server.
        client: boto3's.
    """

    url: str
    client: Any

    def count_free_actions(self, count: int | None) -> None:
        """Accept `count` requests before credentials and rights are checked; None for all requests."""
        body = str(10**9 if count is None else count).encode()
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self.url}/moto-api/reset-auth", body, headers)
        urllib.request.urlopen(request, timeout=60).close()


@contextlib.contextmanager
def serve_s3() -> Iterator[S3Server]:
    """Start a server; set the environment of this process and its children to it."""
    import boto3

    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # it prints a line per request
        text=True,
    )
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        with pytest.MonkeyPatch.context() as environment:
            for name, value in (
                ("AWS_ENDPOINT_URL", url),
                ("AWS_ACCESS_KEY_ID", "testing"),
                ("AWS_SECRET_ACCESS_KEY", "testing"),
                ("AWS_REGION", "us-east-1"),
                ("AWS_DEFAULT_REGION", "us-east-1"),
            ):
                environment.setenv(name, value)
            yield S3Server(url, boto3.client("s3"))
    finally:
        process.kill()
        process.communicate()
