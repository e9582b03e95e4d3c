"""Reads objects at URLs: retries, checks versions, and counts requests."""

from __future__ import annotations

import itertools
import multiprocessing
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.clients import Client, client_of
from penstock.loaders.data.remote.obstore_client import ObstoreClient
from penstock.loaders.data.remote.plain_requests import ask_pause_s
from penstock.loaders.data.remote.remote_object import Folder, Named, Part, RemoteObject
from penstock.loaders.data.remote.storage_errors import (
    as_loader_error,
    asks_for_patience,
    is_lasting,
    is_slow_down,
    is_temporary,
    is_unreachable,
)
from penstock.loaders.data.requests.mirrors import Mirrors
from penstock.loaders.data.requests.pace import Pace
from penstock.loaders.data.requests.request_retries import Deadline, Pauses
from penstock.loaders.data.samples.version import Version
from penstock.loaders.system.retries import with_retries
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.user_warnings import warn_user

Result = TypeVar("Result")

_URL = re.compile(rb"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SILENT_S = 30.0  # after which failing requests are reported
_CORRECTIONS = 3  # times that a refused request is repeated because the credentials have changed


def is_url(path: bytes) -> bool:
    """Return whether `path` is a URL rather than a file; file:// counts as a file."""
    found = _URL.match(path)
    return found is not None and found[1].lower() != b"file"


class ObjectStore:
    """Reads objects by URL, from several threads; opens one client per bucket or host.

    Credentials come from the provider's own chain (environment, files, instance metadata).

    Attributes:
        access: options of the requests.
        pace: learns from the reads how many at once are best, if it is set.
        mirrors: versions that are one object.
        requests: number of requests answered.
        num_bytes: number of bytes received.
        retries: number of requests repeated.
    """

    def __init__(self, access: Access = DEFAULT) -> None:
        self.access = access
        self.pace: Pace | None = None
        self.requests = self.num_bytes = self.retries = 0
        self.mirrors = Mirrors()
        self._pauses, self._has_answered, self._has_warned = Pauses(), False, False
        self._lock = threading.Lock()

    def stat(self, url: str) -> RemoteObject:
        """Return size and version of an object. Raises LoaderError: E-MISSING, E-ACCESS, E-READ."""
        return self._try(url, lambda client, stall_s: client.stat(url, stall_s))

    def read(
        self, url: str, start: int, size: int, version: Version | None = None, deadline: Deadline | None = None
    ) -> Part:
        """Read `size` bytes from `start` on of an object that should have `version`.

        deadline: limit of the whole read that this one is part of. Raises LoaderError: E-MISSING, E-ACCESS, E-READ,
        E-CHANGED for another version or fewer bytes.
        """

        def request(client: Client, stall_s: float) -> Part:
            begun = time.monotonic()
            # Storage does not accept a request for 0 bytes.
            part = client.read(url, start, size, stall_s) if size else Part(b"", client.stat(url, stall_s))
            if version is not None and not self.mirrors.are_one(
                version, part.found.version, lambda: client.stat(url, stall_s).version
            ):
                raise LoaderError("E-CHANGED", "the object was replaced since it was indexed")
            got = memoryview(part.data).nbytes
            if got != size:
                if part.found.size < start + size:
                    cause = f"the object has {part.found.size:,} bytes, fewer than indexed"
                    raise LoaderError("E-CHANGED", cause)
                raise OSError(f"received {got:,} of {size:,} bytes")
            if self.pace is not None:
                self.pace.answered(time.monotonic() - begun, size)
            return part

        part = self._try(url, request, deadline, is_known=version is not None)
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
        attempts = itertools.count()

        def request(client: Client, stall_s: float) -> Folder:
            folders, objects = client.list_folder(url, stall_s, is_repeated=next(attempts) > 0)
            return sorted(folders), dict(sorted(objects))

        return self._try(url, request)

    def list(self, url: str) -> dict[str, RemoteObject]:
        """Return the objects with names that begin with the name in `url`, by URL, sorted."""
        listing = Listing(url)
        while self._try(url, listing.read_page):  # each page has its own deadline
            pass
        return dict(sorted(self._client(url).choose_named(url, listing.found)))

    def _client(self, url: str) -> Client:
        return client_of(url, self.access.headers.pairs)

    def write(self, url: str, file: BinaryIO) -> None:
        """Store a file as an object. Raises LoaderError: E-MISUSE, E-ACCESS, E-READ."""

        def request(client: Client, stall_s: float) -> None:
            if not isinstance(client, ObstoreClient) or client.is_read_only:
                fix = "write to a bucket (s3://, gs://, az://), or to a folder and copy that"
                raise LoaderError("E-MISUSE", "this storage can only be read", fix=fix)
            client.write(url, file, stall_s)

        self._try(url, request)

    def _try(
        self,
        url: str,
        request: Callable[[Client, float], Result],
        deadline: Deadline | None = None,
        *,
        is_known: bool = False,
    ) -> Result:
        """Call `request` with a client and its limit of seconds without data; repeat it while that may help.

        Each attempt is made with the current credentials, endpoint and region. is_known: whether the host must exist,
        because data on it is indexed.
        """
        deadline, numbers = deadline or Deadline(self.access.retry_s), itertools.count()
        client: Client | None = None

        def attempt() -> Result:
            nonlocal client
            try:
                client = self._client(url)
                result = request(client, deadline.stall_s(next(numbers)))
            except LoaderError:
                raise
            except Exception as error:
                if self.pace is not None and is_slow_down(error):
                    self.pace.busy()
                raise as_loader_error(error, url, is_known=is_known) from error
            self._has_answered = True
            return result

        def pause(number: int, error: Exception) -> float | None:
            cause, code = error.__cause__, getattr(error, "code", None)
            if code == "E-ACCESS" and number < _CORRECTIONS and self._client(url) is not client:  # in the meantime
                return 0.0
            if not isinstance(cause, Exception) or code != "E-READ" or is_lasting(cause):
                return None
            lasts = is_temporary(cause) and (is_known or self._has_answered or not is_unreachable(cause))
            ask = partial(ask_pause_s, self._client(url), url, cause) if asks_for_patience(cause) else None
            pause_s = self._pauses.after(number, deadline, urlsplit(url).netloc, ask, lasts=lasts)
            if pause_s is None:
                return None
            self.count_retry()
            self._warn_of_failures(url, error, deadline)
            return 0.0 if deadline.wait(pause_s) else None

        try:
            return with_retries(attempt, pause=pause)
        except LoaderError as error:
            raise error.locate(path=url.encode()) from None  # the original may contain signed URLs

    def _warn_of_failures(self, url: str, error: Exception, deadline: Deadline) -> None:
        """Warn once that a request has been repeated for a long time, because meanwhile nothing else is seen."""
        if deadline.spent_s < _SILENT_S:
            return
        with self._lock:
            has_warned, self._has_warned = self._has_warned, True
        if not has_warned:
            host, cause = urlsplit(url).netloc.rpartition("@")[2], getattr(error, "cause", type(error).__name__)
            warn_user(
                f"a request to {host} has failed for {deadline.spent_s:.0f} s ({cause}); failing requests are repeated "
                f"for {deadline.retry_s:g} s (retry_s=)"
            )

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStore, (self.access,)


class Listing:
    """The objects with names that begin with the name in a URL, as far as they were listed.

    Attributes:
        found: the objects, in the order of the storage.
    """

    def __init__(self, url: str) -> None:
        self._url, self._pages, self._has_failed = url, iter(list[list[Named]]()), False
        self._is_begun, self.found = False, list[Named]()

    def read_page(self, client: Client, stall_s: float) -> bool:
        """Add the next page to `found`; return whether there was one. After a failure, it continues where it was."""
        if not self._is_begun:
            self._pages = self._begin(client, stall_s)
        self._is_begun, self._has_failed = False, True  # unless the page arrives
        page = next(self._pages, None)
        self._is_begun, self._has_failed = True, False
        self.found += page or []
        return page is not None

    def _begin(self, client: Client, stall_s: float) -> Iterator[list[Named]]:
        names = [name for name, _ in self.found]
        if any(name >= following for name, following in pairwise(names)):
            self.found.clear()  # a storage that lists in no order cannot continue after a name
        after = self.found[-1][0] if self.found else ""
        return client.list_pages(self._url, stall_s, after, is_repeated=self._has_failed)


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
