"""Reads ranges of remote objects: obstore for S3, GCS, Azure and HTTP, fsspec for every other protocol."""

from __future__ import annotations

import bisect
import functools
import itertools
import multiprocessing
import os
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

from penstock.loaders.data.remote.storage_errors import ENDPOINTS, as_loader_error, is_busy, refuses_head
from penstock.loaders.data.remote.store_profile import profile_paths, profile_settings
from penstock.loaders.data.samples.version import Version
from penstock.loaders.system.retries import with_retries
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.user_warnings import warn_user

Result = TypeVar("Result")

_OBSTORE_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
_HTTP = ("http", "https")
_URL = re.compile(rb"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
# Time limit of a sample for all attempts together. An attempt without an answer ends after 0.3 of it and is repeated;
# the repetition may take 0.6, for a server that is only slow.
SAMPLE_TIMEOUT_S = 60.0
_SHORT, _LONG = 0.3, 0.6
_RETRY_DELAYS_S = (0.2, 1.0, 4.0, 10.0)  # each times 0.5 to 1.5, so that many clients do not retry at once
# Consoles and tools store an empty folder "new_data" as an object with this name, or with this suffix.
_FOLDER_MARK = "_$folder$"
# Settings of a client besides its address: a new client is opened when any of these changes.
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "MSI_", "IDENTITY_", "HF_")
_PLAIN = "!$&'()*+,;=:@-._~[]|\\^"  # characters that obstore does not quote in the path of an HTTP address


class RemoteObject(NamedTuple):
    """The size and version of an object.

    Attributes:
        size: number of bytes.
        version: version of its content.
    """

    size: int
    version: Version


class Part(NamedTuple):
    """A range of an object.

    Attributes:
        data: the bytes, as an object with the buffer protocol.
        found: the object that contains them.
    """

    data: Any
    found: RemoteObject


Folder = tuple[list[str], dict[str, RemoteObject]]  # folders, objects by URL
Listed = tuple[list[str], list[tuple[str, RemoteObject]]]  # folders, objects


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
        requests: number of requests answered.
        num_bytes: number of bytes received.
        retries: number of requests repeated.
    """

    def __init__(self) -> None:
        self.requests = self.num_bytes = self.retries = 0
        self._lock = threading.Lock()

    def stat(self, url: str) -> RemoteObject:
        """Return size and version of an object. Raises LoaderError: E-MISSING, E-ACCESS, E-READ."""
        return self._try(url, lambda limit_s: _client(url).stat(url, limit_s))

    def read(
        self, url: str, start: int, size: int, version: Version | None = None, deadline: Deadline | None = None
    ) -> Part:
        """Read `size` bytes from `start` on of an object that should have `version`.

        deadline: limit of the whole read that this one is part of. Raises LoaderError: E-MISSING, E-ACCESS, E-READ,
        E-CHANGED for another version or fewer bytes.
        """

        def request(limit_s: float) -> Part:
            # Storage does not accept a request for 0 bytes.
            client = _client(url)
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
        with self._lock:
            self.requests += 1
            self.num_bytes += size
        return part

    def list_folder(self, url: str) -> Folder:
        """Return the folders directly below `url`, each with a slash at the end, and the objects there, both sorted."""

        def request(limit_s: float) -> Folder:
            folders, objects = _client(url).list_folder(url, limit_s)
            return sorted(folders), dict(sorted(objects))

        return self._try(url, request)

    def list(self, url: str) -> dict[str, RemoteObject]:
        """Return the objects with names that begin with the name in `url`, by URL, sorted."""
        return self._try(url, lambda limit_s: dict(sorted(_client(url).list(url, limit_s))))

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
            with self._lock:
                self.retries += 1
            return pause_s

        try:
            return with_retries(attempt, pause=pause)
        except LoaderError as error:
            raise error from None  # the original may contain signed URLs

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStore, ()


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


def _client(url: str) -> _Obstore | _Fsspec:
    scheme, host, path, query, _ = urlsplit(url)
    scheme, base = scheme.lower(), ""
    if scheme in _HTTP and quote(unquote(path), safe=f"/{_PLAIN}") != quote(path, safe=f"/%{_PLAIN}"):
        base = path  # such as a quoted slash, which must be sent unchanged: only the address of a client is
    if query and scheme in _HTTP:
        base = f"{base or '/'}?{query}"
    return _open_client(scheme, host + base, _read_settings())


def _read_settings() -> tuple[object, ...]:
    """Return all settings for signing: when they change, for example in a notebook, a new client is opened."""
    of_environment = sorted((name, value) for name, value in os.environ.items() if name.startswith(_SETTINGS))
    return (*of_environment, *map(_stamp, profile_paths()))


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=256)  # one per host; signed and unusual addresses need one each
def _open_client(scheme: str, host: str, settings: tuple[object, ...]) -> _Obstore | _Fsspec:
    return _Obstore(scheme, host) if scheme in _OBSTORE_SCHEMES else _Fsspec(scheme, host)


class _Obstore:
    """A client of one bucket or host, through obstore."""

    def __init__(self, scheme: str, host: str) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError:
            fix = "pip install 'penstock-loader[remote]'"
            raise LoaderError("E-DEPENDENCY", f"{scheme}:// needs the package obstore", fix=fix) from None
        self._obstore: Any = obstore
        self._client: dict[str, object] = {"connect_timeout": "10s"}
        if scheme == "http" or any(
            os.environ.get(name, "").startswith("http://") for name in (*ENDPOINTS, "AZURE_STORAGE_ENDPOINT")
        ):
            self._client["allow_http"] = True
        self._prefix = f"{scheme}://{host}/"
        self._is_whole = "/" in host.partition("?")[0].rstrip("/")  # the address of one object
        self._more: dict[str, object] = profile_settings() if scheme in ("s3", "s3a") else {}
        self._stores: dict[float, Any] = {}
        self._has_head = True

    def stat(self, url: str, limit_s: float) -> RemoteObject:
        if self._has_head:
            try:
                return self._describe(self._obstore.head(self._open_store(limit_s), self._path(url)))
            except Exception as error:
                if not refuses_head(error):
                    raise
        # URLs signed for reading refuse HEAD requests; and only a read returns S3's text for a refusal.
        found = self.read(url, 0, 1, limit_s).found
        self._has_head = False
        return found

    def _path(self, url: str) -> str:
        return "" if self._is_whole else _path(url)

    def read(self, url: str, start: int, size: int, limit_s: float) -> Part:
        wanted = {"range": (start, start + size)}
        answer = self._obstore.get(self._open_store(limit_s), self._path(url), options=wanted)
        found = self._describe(answer.meta)  # first: older versions lose it when the bytes are taken
        return Part(answer.bytes(), found)

    def list(self, url: str, limit_s: float) -> list[tuple[str, RemoteObject]]:
        prefix = _path(url)
        folder = prefix.rpartition("/")[0]  # obstore matches prefixes by whole names only
        found = self._obstore.list(self._open_store(limit_s), folder or None)
        named = sorted(self._name(meta) for chunk in found for meta in chunk if meta["path"].startswith(prefix))
        names = [name for name, _ in named]
        return [each for each in named if _is_below("", *each) and (each[1].size or not _is_folder(each[0], names))]

    def list_folder(self, url: str, limit_s: float) -> Listed:
        found = self._obstore.list_with_delimiter(self._open_store(limit_s), _path(url).rstrip("/") or None)
        folder = url.rstrip("/") + "/"
        objects = [(name, about) for name, about in map(self._name, found["objects"]) if _is_below(folder, name, about)]
        return [f"{self._prefix}{path}/" for path in found["common_prefixes"]], objects

    def _name(self, meta: Any) -> tuple[str, RemoteObject]:
        return self._prefix + meta["path"], self._describe(meta)

    def _open_store(self, limit_s: float) -> Any:
        """Return a client with the request limit `limit_s`, which obstore cannot set per request."""
        if limit_s not in self._stores:
            client = {**self._client, "timeout": timedelta(seconds=limit_s)}
            # Without obstore's own retries, which would exceed the deadline.
            open_store = self._obstore.store.from_url
            if self._is_whole:
                open_store = self._obstore.store.HTTPStore.from_url
            self._stores[limit_s] = open_store(
                self._prefix[:-1], client_options=client, retry_config={"max_retries": 0}, **self._more
            )
        return self._stores[limit_s]

    @staticmethod
    def _describe(meta: Any) -> RemoteObject:
        return RemoteObject(meta["size"], Version.of_object(meta["e_tag"], meta["last_modified"], meta["size"]))


def _is_below(folder: str, name: str, found: RemoteObject) -> bool:
    """Return whether an object is in `folder` and not the mark of an empty folder, left by a console or tool."""
    last = name.rpartition("/")[2]
    is_mark = not found.size and ("." not in last or last.endswith(_FOLDER_MARK))  # obstore leaves out a last slash
    return not is_mark and len(name) > len(folder) and name.startswith(folder)


def _is_folder(name: str, names: Sequence[str]) -> bool:
    """Return whether any of the sorted `names` is below `name`: then an empty object `name` is a folder mark."""
    at = bisect.bisect_left(names, f"{name}/")
    return at < len(names) and names[at].startswith(f"{name}/")


def has_fsspec() -> bool:
    """Return whether fsspec, which opens other protocols, can be imported."""
    try:
        import fsspec  # noqa: F401
    except ImportError:
        return False
    return True


_TIMES = ("mtime", "LastModified", "last_modified", "modified", "modificationTime", "created")


class _Fsspec:
    """A client of one protocol, through fsspec."""

    def __init__(self, scheme: str, host: str) -> None:
        try:
            import fsspec
        except ImportError:
            fix = "pip install fsspec"
            raise LoaderError("E-DEPENDENCY", f"{scheme}:// needs the package fsspec", fix=fix) from None
        fix = "check the scheme of the URL; if it is right, pip install the package that adds it to fsspec"
        try:
            self._files = fsspec.filesystem(scheme)
        except TypeError as error:  # ftp, sftp, webhdfs and others
            cause = f"{scheme}:// needs settings that a URL cannot contain ({error})"
            fix = "mount the storage as a folder, or serve it over HTTP or S3"
            raise LoaderError("E-UNSUPPORTED", cause, fix=fix) from None
        except (ImportError, ValueError) as error:
            raise LoaderError("E-DEPENDENCY", f"fsspec cannot open {scheme}://: {error}", fix=fix) from None

    def stat(self, url: str, limit_s: float) -> RemoteObject:
        return self._describe(self._files.info(url, **self._limit(limit_s)))

    @staticmethod
    def _describe(about: dict[str, Any]) -> RemoteObject:
        etag = next((about[name] for name in ("etag", "ETag", "sha256", "blob_id") if about.get(name)), None)
        modified = next((about[name] for name in _TIMES if about.get(name)), "")
        return RemoteObject(
            about["size"], Version.of_object(None if etag is None else str(etag), modified, about["size"])
        )

    def read(self, url: str, start: int, size: int, limit_s: float) -> Part:
        data = self._files.cat_file(url, start=start, end=start + size, **self._limit(limit_s))
        return Part(data, self.stat(url, limit_s))

    def list(self, url: str, limit_s: float) -> list[tuple[str, RemoteObject]]:
        folder = url.rpartition("/")[0]
        base = self._files._strip_protocol(folder).rstrip("/")
        found = self._files.find(folder, detail=True, **self._limit(limit_s)).items()
        named = ((folder + path[len(base) :], about) for path, about in found)
        return [(name, self._describe(about)) for name, about in named if name.startswith(url)]

    def list_folder(self, url: str, limit_s: float) -> Listed:
        folder = url.rstrip("/")
        base = self._files._strip_protocol(folder).rstrip("/")
        found = [
            (folder + about["name"].rstrip("/")[len(base) :], about)
            for about in self._files.ls(folder, detail=True, **self._limit(limit_s))
        ]
        objects = [(name, self._describe(about)) for name, about in found if about["type"] == "file"]
        return [f"{name}/" for name, about in found if about["type"] == "directory"], objects

    def _limit(self, limit_s: float) -> dict[str, float]:
        """Return the timeout argument of a call, if the protocol accepts one."""
        return {"timeout": limit_s} if self._files.async_impl else {}


def _path(url: str) -> str:
    """Return the name of an object: in HTTP it is quoted and ends at a query, elsewhere it may have any character."""
    scheme, _, rest = url.partition("://")
    return unquote(urlsplit(url).path).lstrip("/") if scheme.lower() in _HTTP else rest.partition("/")[2].lstrip("/")
