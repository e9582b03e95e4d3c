"""Reads objects at URLs: retries, checks versions, and counts requests."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.clients import Client, client_of
from penstock.loaders.data.remote.obstore_client import ObstoreClient
from penstock.loaders.data.remote.remote_object import Folder, Part, RemoteObject
from penstock.loaders.data.remote.storage_errors import as_loader_error, is_busy
from penstock.loaders.data.samples.version import Version
from penstock.loaders.system.retries import with_retries
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.user_warnings import warn_user

Result = TypeVar("Result")

_URL = re.compile(rb"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
# Time limit of a sample for all attempts together. An attempt without an answer ends after 0.3 of it and is repeated;
# the repetition may take 0.6, for a server that is only slow.
SAMPLE_TIMEOUT_S = 60.0
_SHORT, _LONG = 0.3, 0.6
_RETRY_DELAYS_S = (0.2, 1.0, 4.0, 10.0)  # each times 0.5 to 1.5, so that many clients do not retry at once


class Deadline:
    """A limit of SAMPLE_TIMEOUT_S, from now on, for all attempts of a read together."""

    def __init__(self) -> None:
        self._end = time.monotonic() + SAMPLE_TIMEOUT_S

    def allows_attempt(self, pause_s: float = 0.0) -> bool:
        """Return whether an attempt that begins `pause_s` from now can end in time."""
        return self._end - time.monotonic() - pause_s >= SAMPLE_TIMEOUT_S * _SHORT

    def attempt_s(self, number: int) -> float:
        """Return the limit in seconds of attempt `number`, counted from 0."""
        long_s = SAMPLE_TIMEOUT_S * _LONG
        return long_s if number and self._end - time.monotonic() >= long_s else SAMPLE_TIMEOUT_S * _SHORT


def is_url(path: bytes) -> bool:
    """Return whether `path` is a URL rather than a file; file:// counts as a file."""
    found = _URL.match(path)
    return found is not None and found[1].lower() != b"file"


class ObjectStore:
    """Reads objects by URL, from several threads; opens one client per bucket or host.

    Credentials come from the provider's own chain (environment, files, instance metadata).

    Attributes:
        access: options of the requests.
        requests: number of requests answered.
        num_bytes: number of bytes received.
        retries: number of requests repeated.
    """

    def __init__(self, access: Access = DEFAULT) -> None:
        self.access = access
        self.requests = self.num_bytes = self.retries = 0
        self._lock = threading.Lock()

    def stat(self, url: str) -> RemoteObject:
        """Return size and version of an object. Raises LoaderError: E-MISSING, E-ACCESS, E-READ."""
        return self._try(url, lambda limit_s: self._client(url).stat(url, limit_s))

    def read(
        self, url: str, start: int, size: int, version: Version | None = None, deadline: Deadline | None = None
    ) -> Part:
        """Read `size` bytes from `start` on of an object that should have `version`.

        deadline: limit of the whole read that this one is part of. Raises LoaderError: E-MISSING, E-ACCESS, E-READ,
        E-CHANGED for another version or fewer bytes.
        """

        def request(limit_s: float) -> Part:
            # Storage does not accept a request for 0 bytes.
            client = self._client(url)
            part = client.read(url, start, size, limit_s) if size else Part(b"", client.stat(url, limit_s))
            if version is not None and part.found.version != version:
                raise LoaderError("E-CHANGED", "the object was replaced since it was indexed")
            got = memoryview(part.data).nbytes
            if got != size:
                if part.found.size < start + size:
                    cause = f"the object has {part.found.size:,} bytes, fewer than indexed"
                    raise LoaderError("E-CHANGED", cause)
                raise OSError(f"received {got:,} of {size:,} bytes")
            return part

        part = self._try(url, request, deadline)
        self.count(size)
        return part

    def count(self, num_bytes: int) -> None:
        """Count a request that was answered."""
        with self._lock:
            self.requests += 1
            self.num_bytes += num_bytes

    def count_retry(self) -> None:
        """Count a request that is repeated."""
        with self._lock:
            self.retries += 1

    def list_folder(self, url: str) -> Folder:
        """Return the folders directly below `url`, each with a slash at the end, and the objects there, both sorted."""

        def request(limit_s: float) -> Folder:
            folders, objects = self._client(url).list_folder(url, limit_s)
            return sorted(folders), dict(sorted(objects))

        return self._try(url, request)

    def list(self, url: str) -> dict[str, RemoteObject]:
        """Return the objects with names that begin with the name in `url`, by URL, sorted."""
        return self._try(url, lambda limit_s: dict(sorted(self._client(url).list(url, limit_s))))

    def _client(self, url: str) -> Client:
        return client_of(url, self.access.headers.pairs)

    def write(self, url: str, file: BinaryIO) -> None:
        """Store a file as an object. Raises LoaderError: E-MISUSE, E-ACCESS, E-READ."""
        client = self._client(url)
        if not isinstance(client, ObstoreClient) or client.is_read_only:
            fix = "write to a bucket (s3://, gs://, az://), or to a folder and copy that"
            raise LoaderError("E-MISUSE", "this storage can only be read", fix=fix, path=url.encode())
        self._try(url, partial(client.write, url, file))

    def _try(self, url: str, request: Callable[[float], Result], deadline: Deadline | None = None) -> Result:
        """Call `request` with its limit in seconds and return its result; repeat it while that may help."""
        deadline, numbers = deadline or Deadline(), itertools.count()

        def attempt() -> Result:
            try:
                return request(deadline.attempt_s(next(numbers)))
            except LoaderError as error:
                raise error.locate(path=url.encode()) from None
            except Exception as error:
                raise as_loader_error(error, url) from error

        def pause(number: int, error: Exception) -> float | None:
            if not isinstance(error.__cause__, Exception) or getattr(error, "code", None) != "E-READ":
                return None
            # Requests to a busy server are repeated until the deadline.
            delays_s = _RETRY_DELAYS_S[number : number + 1] or _RETRY_DELAYS_S[-1:] * is_busy(error.__cause__)
            pause_s = sum(delays_s) * random.uniform(0.5, 1.5)  # noqa: S311
            if not delays_s or not deadline.allows_attempt(pause_s):
                return None
            self.count_retry()
            return pause_s

        try:
            return with_retries(attempt, pause=pause)
        except LoaderError as error:
            raise error from None  # the original may contain signed URLs

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStore, (self.access,)


_warned_of = set[str]()  # hosts


def warn_of_no_version(url: bytes) -> None:
    """Warn once, in the user's process, of a storage that does not report versions of objects."""
    host = urlsplit(url.decode()).netloc
    if host not in _warned_of and multiprocessing.parent_process() is None:
        _warned_of.add(host)
        warn_user(
            f"the server of {printable(url)} reports no versions of its objects, neither ETag nor Last-Modified: an "
            "object replaced by another of the same size is not detected, and no local copy is stored"
        )
