"""Reads ranges of remote objects: obstore for S3, GCS, Azure and HTTP, fsspec for every other protocol."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

from penstock.pipelines.errors import LoaderError

Result = TypeVar("Result")

_OBSTORE_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
_URL = re.compile(rb"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
REQUEST_TIMEOUT_S = 60.0  # of one request, its retries by the storage client included
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
_RETRY_DELAYS_S = (0.2, 1.0, 4.0)  # each times 0.5 to 1.5, so that many clients do not come back at once
_RIGHTS = "check the storage's credentials (environment, configuration file or role) and what they may read"
_INDEX_AGAIN = "start again: the data is then indexed again"
_FAILED = "check the network and the storage; the request failed after retries"
_NO_RANGES = "the server answers with the whole object instead of the range that was asked for"
_CODES = {
    "FileNotFoundError": (
        "E-MISSING",
        "no such object",
        "check the URL; if the data was moved, open it at its new place",
    ),
    "PermissionDeniedError": ("E-ACCESS", "the credentials do not allow it", _RIGHTS),
    "UnauthenticatedError": ("E-ACCESS", "the credentials are missing or have expired", _RIGHTS),
    "PermissionError": ("E-ACCESS", "the credentials do not allow it", _RIGHTS),
    "PreconditionError": ("E-CHANGED", "the object was replaced since it was indexed", _INDEX_AGAIN),
    "NotSupportedError": ("E-READ", _NO_RANGES, "serve it with support for Range requests, or download it"),
}


class RemoteObject(NamedTuple):
    """Describe an object.

    Attributes:
        size: bytes.
        version: number that differs if the object is replaced: of its ETag, or of its time without one.
    """

    size: int
    version: int


class Part(NamedTuple):
    """Hold a range of an object.

    Attributes:
        data: the bytes, as an object with the buffer protocol.
        found: the object that they come from.
    """

    data: Any
    found: RemoteObject


def is_url(path: bytes) -> bool:
    """Return whether `path` is a URL rather than a file; file:// counts as a file."""
    found = _URL.match(path)
    return found is not None and found[1].lower() != b"file"


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query, which may hold signatures."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class ObjectStore:
    """Read objects by URL, from several threads; opens one client per bucket or host.

    Credentials come from the provider's own chain (environment, files, instance metadata). Counts what it did.

    Attributes:
        requests: requests that were answered.
        num_bytes: bytes that came.
        retries: requests that were repeated here, in addition to those that the storage client repeats.
    """

    def __init__(self) -> None:
        self.requests = self.num_bytes = self.retries = 0
        self._lock = threading.Lock()

    def stat(self, url: str) -> RemoteObject:
        """Return size and version of an object. Raises LoaderError: E-MISSING, E-ACCESS, E-READ."""
        found: RemoteObject = self._try(url, lambda: _client(url).stat(url))
        return found

    def read(self, url: str, start: int, size: int, version: int | None = None) -> Part:
        """Read `size` bytes from `start` on of an object that should have `version`.

        Raises LoaderError: E-MISSING, E-ACCESS, E-READ, E-CHANGED for another version or fewer bytes.
        """

        def request() -> Part:
            part: Part = _client(url).read(url, start, size)
            if version is not None and part.found.version != version:
                raise LoaderError("E-CHANGED", "the object was replaced since it was indexed", fix=_INDEX_AGAIN)
            got = memoryview(part.data).nbytes
            if got != size:
                if part.found.size < start + size:
                    cause = f"the object has {part.found.size:,} bytes, fewer than indexed"
                    raise LoaderError("E-CHANGED", cause, fix=_INDEX_AGAIN)
                raise OSError(f"{got:,} of {size:,} bytes came")
            return part

        part = self._try(url, request)
        with self._lock:
            self.requests += 1
            self.num_bytes += size
        return part

    def list(self, url: str) -> list[str]:
        """Return the URLs of the objects whose names begin with that of `url`, sorted."""
        return self._try(url, lambda: sorted(_client(url).list(url)))

    def _try(self, url: str, request: Callable[[], Result]) -> Result:
        for delay_s in (*_RETRY_DELAYS_S, None):
            try:
                return request()
            except LoaderError as error:
                raise error.locate(path=without_secrets(url).encode()) from None
            except Exception as error:
                found = _as_loader_error(error, url)
                if delay_s is None or found.code != "E-READ":
                    raise found from None  # the original may hold signed URLs
            with self._lock:
                self.retries += 1
            time.sleep(delay_s * random.uniform(0.5, 1.5))  # noqa: S311
        raise AssertionError("unreachable")

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, ()


def _as_loader_error(error: Exception, url: str) -> LoaderError:
    text = re.sub(r"\S+://\S+", lambda found: without_secrets(found[0]), str(error)).splitlines()
    other = f"{type(error).__name__}: {text[0][:200] if text else ''}"
    code, cause, fix = _CODES.get(type(error).__name__, ("E-READ", other, _FAILED))
    return LoaderError(code, cause, fix=fix, path=without_secrets(url).encode())


def _version(etag: str | None, modified: Any) -> int:
    identity = etag or str(modified)
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "little") >> 1


@functools.cache
def _client(url: str) -> Any:
    scheme, host = urlsplit(url)[:2]
    return _open_client(scheme.lower(), host)


@functools.cache
def _open_client(scheme: str, host: str) -> Any:
    kind = _Obstore if scheme in _OBSTORE_SCHEMES else _Fsspec
    return kind(scheme, host)


class _Obstore:
    """Client of one bucket or host, through obstore."""

    def __init__(self, scheme: str, host: str) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError:
            fix = "pip install 'penstock-loader[remote]'"
            raise LoaderError("E-DEPENDENCY", f"{scheme}:// needs the package obstore", fix=fix) from None
        self._obstore: Any = obstore
        retries: dict[str, Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)}
        client: dict[str, Any] = {
            "timeout": f"{REQUEST_TIMEOUT_S:.0f}s",
            "connect_timeout": "10s",
        }
        if scheme == "http" or any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
            client["allow_http"] = True
        self._store = self._obstore.store.from_url(f"{scheme}://{host}", client_options=client, retry_config=retries)
        self._prefix = f"{scheme}://{host}/"

    def stat(self, url: str) -> RemoteObject:
        return self._describe(self._obstore.head(self._store, _path(url)))

    def read(self, url: str, start: int, size: int) -> Part:
        answer = self._obstore.get(self._store, _path(url), options={"range": (start, start + size)})
        found = self._describe(answer.meta)  # first: older versions forget it with the bytes
        return Part(answer.bytes(), found)

    def list(self, url: str) -> list[str]:
        prefix = _path(url)
        folder = prefix.rpartition("/")[0]  # a prefix of the storage ends with a whole name
        found = self._obstore.list(self._store, folder or None)
        paths = (meta["path"] for chunk in found for meta in chunk)
        return [self._prefix + path for path in paths if path.startswith(prefix)]

    @staticmethod
    def _describe(meta: Any) -> RemoteObject:
        return RemoteObject(meta["size"], _version(meta["e_tag"], meta["last_modified"]))


class _Fsspec:
    """Client of one protocol, through fsspec."""

    def __init__(self, scheme: str, host: str) -> None:
        try:
            import fsspec
        except ImportError:
            fix = "pip install fsspec and its package for this protocol"
            raise LoaderError("E-DEPENDENCY", f"{scheme}:// needs the package fsspec", fix=fix) from None
        fix = "check the spelling (s3, gs, az, https, hf ...), or install fsspec's package for this protocol"
        try:
            self._files = fsspec.filesystem(scheme)
        except (ImportError, ValueError) as error:
            raise LoaderError("E-DEPENDENCY", f"fsspec cannot open {scheme}://: {error}", fix=fix) from None
        self._scheme = scheme

    def stat(self, url: str) -> RemoteObject:
        about = self._files.info(url)
        etag = next((about[name] for name in ("etag", "ETag", "sha256", "blob_id") if about.get(name)), None)
        modified = next((about[name] for name in ("mtime", "LastModified", "last_modified") if about.get(name)), "")
        return RemoteObject(about["size"], _version(None if etag is None else str(etag), modified))

    def read(self, url: str, start: int, size: int) -> Part:
        return Part(self._files.cat_file(url, start=start, end=start + size), self.stat(url))

    def list(self, url: str) -> list[str]:
        return [f"{self._scheme}://{path}" for path in self._files.find(url)]


def _path(url: str) -> str:
    return urlsplit(url).path.lstrip("/")
