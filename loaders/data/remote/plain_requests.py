"""Requests for objects that any HTTP client can send, and whether their answers are what was asked for."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from penstock.loaders.data.remote.clients import Client, Headers, client_of
from penstock.loaders.data.remote.curl_requests import Answer
from penstock.loaders.data.remote.obstore_client import ObstoreClient
from penstock.loaders.data.requests.mirrors import Mirrors
from penstock.loaders.data.requests.request_retries import retry_after_s
from penstock.loaders.data.samples.version import Version
from penstock.loaders.system.retries import find_headers

_KEPT_S = 300.0  # a signature is valid for longer
_CLIENT_KEPT_S = 2.0  # settings of the environment are read this often
_MOST_KEPT = 4096
_ASK_TIMEOUT_S = 5.0


class _Plain(NamedTuple):
    url: str
    headers: tuple[str, ...]
    until: float


class PlainRequests:
    """Finds plain requests, and keeps those of objects with many samples.

    headers: names and values for all requests by HTTP.
    """

    def __init__(self, headers: Headers = (), mirrors: Mirrors | None = None) -> None:
        self._mirrors = mirrors or Mirrors()
        self._headers = headers
        self._known = dict[str, _Plain]()  # by URL
        self._clients = dict[str, tuple[object, float]]()  # by scheme and host
        self._versions = dict[tuple[bytes, bytes, bytes], Version]()

    def find(self, url: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the address of an object and the header lines to send; None if only its own client can read it."""
        now = time.monotonic()
        known = self._known.get(url)
        if known is None or known.until < now:
            client = self._client(url, now)
            try:
                found = client.plain_request(url) if isinstance(client, ObstoreClient) else None
            except Exception:  # the client will raise it again, with its cause, or heal
                found = None
            if found is None:
                return None
            headers = tuple(f"{name}: {value}" for name, value in found[1].items())
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            known = self._known[url] = _Plain(found[0], headers, now + _KEPT_S)
        return known[:2]

    def forget(self, url: str) -> None:
        """Find the request for `url` anew: its signature may have expired."""
        self._known.pop(url, None)
        self._clients.clear()

    def is_right(self, answer: Answer, start: int, size: int, version: Version) -> bool:
        """Return whether an answer has the `size` bytes from `start` on of an object of this version."""
        if answer.status != 206 or len(answer.data) != size:
            return False
        etag, modified, place = answer.etag, answer.modified, answer.place
        wanted = b"bytes %d-%d/" % (start, start + size - 1)
        if not place.startswith(wanted):
            return False
        key = etag, modified, place[len(wanted) :]
        found = self._versions.get(key)
        if found is None:
            if len(self._versions) >= _MOST_KEPT:
                self._versions.clear()
            found = self._versions[key] = _version(*key)
        return self._mirrors.are_known(version, found)

    def _client(self, url: str, now: float) -> object:
        if "%" in url or "?" in url:  # such an address can need a client of its own
            return client_of(url, self._headers)
        host = url[: url.find("/", url.find("://") + 3)]
        client, until = self._clients.get(host, (None, 0.0))
        if until < now:
            client = client_of(url, self._headers)
            self._clients[host] = client, now + _CLIENT_KEPT_S
        return client


def _version(etag: bytes, modified: bytes, total: bytes) -> Version:
    try:
        date = parsedate_to_datetime(modified.decode("latin-1")) if modified else None
        size = int(total)
    except ValueError:
        return Version(0, is_known=False)
    return Version.of_object(etag.decode("latin-1") or None, date, size)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: urllib would send all headers, which may be secret, to another host."""

    def redirect_request(self, *_: object) -> None:
        return None


def ask_pause_s(client: Client, url: str, error: Exception) -> float | None:
    """Return the seconds that a server with too many requests asks to wait (Retry-After); None if it does not.

    It is asked for one byte of the object if the headers of its refusal are not in `error`: obstore leaves them out.
    """
    asked_s = retry_after_s(find_headers(error))
    if asked_s is not None:
        return asked_s
    try:
        plain = client.plain_request(url)
        if plain is None or not plain[0].startswith(("http://", "https://")):
            return None
        request = urllib.request.Request(plain[0], headers={**plain[1], "Range": "bytes=0-0"})  # noqa: S310
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=_ASK_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as refusal:
        return retry_after_s(find_headers(refusal))
    except Exception:  # the client's own error is reported
        return None
