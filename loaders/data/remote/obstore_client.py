"""Reads ranges of objects in S3, GCS, Azure and at HTTP addresses by obstore."""

from __future__ import annotations

import base64
import bisect
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, unquote, urlsplit

from penstock.loaders.data.remote.certificates import ca_bundle, read_certificates
from penstock.loaders.data.remote.remote_object import Listed, Named, Part, RemoteObject
from penstock.loaders.data.remote.storage_errors import (
    ask_region,
    is_beyond_end,
    named_region,
    refuses_head,
    s3_problem,
)
from penstock.loaders.data.remote.store_profile import ENDPOINTS, TRUE, azure_settings, gcs_settings, profile_settings
from penstock.loaders.data.requests.time_limits import PAGE_BYTES, total_s
from penstock.loaders.data.samples.version import Version
from penstock.pipelines.errors import LoaderError

Result = TypeVar("Result")

HTTP, S3 = ("http", "https"), ("s3", "s3a")
SCHEMES = (*S3, "gs", "az", "azure", "abfs", "abfss", *HTTP)
PLAIN = "!$&'()*+,;=:@-._~[]|\\^"  # characters that obstore does not quote in the path of an HTTP address
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_ENDPOINTS = (*ENDPOINTS, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL")
_SIGNED_FOR = timedelta(hours=1)
_STALL_S = 30.0  # of a store that only signs
_PAGE = 100  # objects that are kept at once from a listing, of which a request returns 1,000 or more
_NO_RETRIES: dict[str, Any] = {"max_retries": 0}  # obstore's own would exceed the deadline
# Of a listing that failed before: only obstore can repeat the request for one page of a folder.
_PAGE_RETRIES = {"max_retries": 20, "retry_timeout": timedelta(minutes=3)}
_RENEW_AFTER_S = 60.0  # keys that expire are not renewed more often because the storage refuses them
# Settings with which a request needs more than an address.
_NOT_PLAIN = ("AWS_S3_EXPRESS", "AWS_SSE_CUSTOMER_KEY_BASE64")
# In the query of an address that is signed for one method: S3, GCS, CloudFront; Azure.
_SIGNATURE = re.compile(r"[?&](?:[\w-]*signature|sig)=", re.IGNORECASE)
# Consoles and tools store an empty folder "new_data" as an object with this name, or with this suffix.
_FOLDER_MARK = "_$folder$"
_WRITTEN_BYTES = 16 << 20  # of one part: S3 accepts 10,000


class ObstoreClient:
    """A client of one bucket or host, through obstore.

    host: with the path and query of an address that only the client of a single object sends unchanged. headers: of all
    requests by HTTP.
    """

    def __init__(self, scheme: str, host: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError:
            fix = "pip install 'penstock-loader[remote]'"
            raise LoaderError("E-DEPENDENCY", f"{scheme}:// needs the package obstore", fix=fix) from None
        self._obstore: Any = obstore
        self._scheme, self._options, self._origin = scheme, dict[str, Any](), ""
        self._headers: dict[str, str] = {}
        if scheme in HTTP:
            login, _, host = _split_login(host)
            self._headers = {**headers, **login_header(login)}
        self._prefix = f"{scheme}://{host}/"
        self._is_whole = "/" in host.partition("?")[0].rstrip("/")  # the address of one object
        self._read_settings()
        self._stores: dict[tuple[float, float, bool], Any] = {}
        self._lock = threading.Lock()
        self._has_answered, self._renewed_at = False, -_RENEW_AFTER_S
        # URLs signed for reading refuse HEAD requests.
        self._has_head = not (scheme in HTTP and _SIGNATURE.search(host))

    def _read_settings(self) -> None:
        """Set the options of the store that obstore does not read from the environment."""
        if self._scheme in S3:
            self._options, self._origin = profile_settings()
        elif self._scheme == "gs":
            self._options = gcs_settings()
        elif self._scheme not in HTTP and "@" not in self._prefix:  # else the URL names the account
            self._options = azure_settings()

    def stat(self, url: str, stall_s: float) -> RemoteObject:
        path = self._path(url)
        if self._has_head:
            try:
                return self._describe(self._request(stall_s, lambda store: self._obstore.head(store, path)))
            except Exception as error:
                if not refuses_head(error):
                    raise
        # Only a read returns S3's text for a refusal.
        try:
            found = self.read(url, 0, 1, stall_s).found
        except Exception as error:
            if not is_beyond_end(error):
                raise
            found = self._request(stall_s, lambda store: self._describe(self._obstore.get(store, path).meta))  # empty
        self._has_head = self._scheme not in HTTP
        return found

    def _path(self, url: str) -> str:
        return "" if self._is_whole else _path(url)

    def read(self, url: str, start: int, size: int, stall_s: float) -> Part:
        def request(store: Any) -> Part:
            answer = self._obstore.get(store, self._path(url), options={"range": (start, start + size)})
            found = self._describe(answer.meta)  # first: older versions lose it when the bytes are taken
            return Part(answer.bytes(), found)

        return self._request(stall_s, request, size)

    def plain_request(self, url: str) -> tuple[str, dict[str, str]] | None:
        """Return a URL and headers with which any HTTP client can read an object; None if only this client can.

        In S3 the URL is signed (12 us). It is valid for an hour, or until the credentials expire. Raises as read() if
        they cannot be found.
        """
        store = None if self._is_whole else self._any_store()
        if self._is_whole or isinstance(store, self._obstore.store.HTTPStore):
            scheme, host, path, query, _ = urlsplit(url)
            address = f"{scheme}://{_split_login(host)[2]}{path or '/'}{'?' if query else ''}{query}"
            return quote(address, safe=f"/%?{PLAIN}"), self._headers
        if not isinstance(store, self._obstore.store.S3Store) or any(map(os.environ.get, _NOT_PLAIN)):
            return None
        is_public = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in TRUE
        if is_public:  # the address is that of a signed URL without its signature
            keys = {"access_key_id": "-", "secret_access_key": "-", "session_token": "-"}
            store = self._new_store({**self._options, **keys}, {"timeout": "30s"}, _NO_RETRIES)
        signed = str(self._obstore.sign(store, "GET", self._path(url), _SIGNED_FOR))
        return signed.partition("?")[0] if is_public else signed, {}

    @property
    def is_read_only(self) -> bool:
        """Whether objects cannot be written: at HTTP addresses."""
        return self._scheme in HTTP

    def write(self, url: str, file: BinaryIO, stall_s: float) -> None:
        """Store a file; a large one is sent in parts."""

        def request(store: Any) -> None:
            file.seek(0)
            self._obstore.put(store, self._path(url), file, chunk_size=_WRITTEN_BYTES)

        # Nothing is received while a part is sent.
        self._request(total_s(stall_s, _WRITTEN_BYTES), request, _WRITTEN_BYTES)

    def list_pages(self, url: str, stall_s: float, after: str, *, is_repeated: bool) -> Iterator[list[Named]]:
        """Yield the objects in the folder of the name in `url`, from the one after URL `after` on.

        is_repeated: whether the last request for a page failed.
        """
        folder = _path(url).rpartition("/")[0]  # obstore matches prefixes by whole names only
        offset = after[len(self._prefix) :] or None

        def request(store: Any) -> tuple[Any, Any]:
            pages = iter(self._obstore.list(store, folder or None, offset=offset, chunk_size=_PAGE))
            return next(pages, None), pages

        page, pages = self._request(stall_s, request, PAGE_BYTES, is_repeated=is_repeated)
        while page is not None:
            yield [self._name(meta) for meta in page]
            page = next(pages, None)

    @staticmethod
    def choose_named(url: str, listed: Sequence[Named]) -> list[Named]:
        """Return the objects in a listing with names that begin with `url`, without marks of folders."""
        named = sorted(each for each in listed if each[0].startswith(url))
        names = [name for name, _ in named]
        return [each for each in named if _is_below("", *each) and (each[1].size or not _is_folder(each[0], names))]

    def list_folder(self, url: str, stall_s: float, *, is_repeated: bool) -> Listed:
        path = _path(url).rstrip("/") or None

        def request(store: Any) -> Any:
            return self._obstore.list_with_delimiter(store, path)

        found = self._request(stall_s, request, PAGE_BYTES, is_repeated=is_repeated)
        folder = url.rstrip("/") + "/"
        objects = [(name, about) for name, about in map(self._name, found["objects"]) if _is_below(folder, name, about)]
        return [f"{self._prefix}{path}/" for path in found["common_prefixes"]], objects

    def _name(self, meta: Any) -> tuple[str, RemoteObject]:
        return self._prefix + meta["path"], self._describe(meta)

    def _request(
        self, stall_s: float, request: Callable[[Any], Result], num_bytes: int = 0, *, is_repeated: bool = False
    ) -> Result:
        """Return the result of `request`; repeat it if the bucket is in another region, or the keys were renewed."""
        for is_last in (False, False, True):
            store = self._open_store(stall_s, num_bytes, is_repeated=is_repeated)
            try:
                result = request(store)
            except Exception as error:
                self._describe_itself(error)
                if is_last or not self._has_corrected(error, store):
                    raise
            else:
                self._has_answered = True
                return result
        raise AssertionError("unreachable")

    def _describe_itself(self, error: Any) -> None:
        """Add to an error what as_loader_error says of this client."""
        region = self._options.get("region")
        error.is_first, error.origin = not self._has_answered, f"{self._origin}{f', region {region}' if region else ''}"

    def _has_corrected(self, error: Exception, store: Any) -> bool:
        """Return whether the settings with which `store` was opened have been corrected after an error."""
        problem = s3_problem(error) if self._scheme in S3 else ""
        if not problem:
            return False
        with self._lock:
            if all(each is not store for each in self._stores.values()):  # another thread was first
                return True
            if problem == "region":
                found = named_region(error) or ask_region(self._prefix, self._options.get("endpoint"))
                if not found or found == self._options.get("region"):
                    return False
                self._options["region"] = found
            else:
                provider = self._options.get("credential_provider")
                if provider is None or not provider.expires_at or monotonic() < self._renewed_at + _RENEW_AFTER_S:
                    return False
                self._renewed_at, region = monotonic(), self._options.get("region")
                self._read_settings()
                self._options |= {"region": region} if region else {}
            self._stores = {}
            return True

    def _any_store(self) -> Any:
        return next(iter(self._stores.values()), None) or self._open_store(_STALL_S)

    def _open_store(self, stall_s: float, num_bytes: int = 0, *, is_repeated: bool = False) -> Any:
        """Return a client for requests of `num_bytes`: obstore cannot set limits or retries per request."""
        stores, limit_s = self._stores, total_s(stall_s, num_bytes)
        key = stall_s, limit_s, is_repeated
        if key not in stores:
            limits = {"read_timeout": timedelta(seconds=stall_s), "timeout": timedelta(seconds=limit_s)}
            stores[key] = self._new_store(self._options, limits, _PAGE_RETRIES if is_repeated else _NO_RETRIES)
        return stores[key]

    def _new_store(self, options: dict[str, Any], limits: Mapping[str, object], retries: dict[str, Any]) -> Any:
        client: dict[str, object] = {"connect_timeout": "10s", **limits}
        endpoints = [*map(os.environ.get, _ENDPOINTS), *map(options.get, ("endpoint", "base_url"))]
        if self._scheme == "http" or any((endpoint or "").startswith("http://") for endpoint in endpoints):
            client["allow_http"] = True
        bundle = ca_bundle(self._scheme) if self._scheme != "http" else None
        if bundle is not None and bundle != os.environ.get("SSL_CERT_FILE"):  # which obstore reads itself
            client["root_certificate"] = read_certificates(bundle)
        if self._headers:
            client["default_headers"] = self._headers
        is_plain = self._is_whole or self._headers  # else addresses of AWS and Azure are signed
        open_store = self._obstore.store.HTTPStore.from_url if is_plain else self._obstore.store.from_url
        return open_store(self._prefix[:-1], client_options=client, retry_config=retries, **options)

    @staticmethod
    def _describe(meta: Any) -> RemoteObject:
        return RemoteObject(meta["size"], Version.of_object(meta["e_tag"], meta["last_modified"], meta["size"]))


def _split_login(host: str) -> tuple[str, str, str]:
    """Return user and password of an address without its scheme, the separator, and the rest."""
    end = next((at for at, letter in enumerate(host) if letter in "/?"), len(host))
    login, at, place = host[:end].rpartition("@")
    return login, at, place + host[end:]


def login_header(login: str) -> dict[str, str]:
    """Return the header of a user and password, "user:password" as in an address; none for ""."""
    words = base64.b64encode(unquote(login).encode()).decode()
    return {"Authorization": f"Basic {words}"} if login else {}


def _is_below(folder: str, name: str, found: RemoteObject) -> bool:
    """Return whether an object is in `folder` and not the mark of an empty folder, left by a console or tool."""
    last = name.rpartition("/")[2]
    is_mark = not found.size and ("." not in last or last.endswith(_FOLDER_MARK))  # obstore leaves out a last slash
    return not is_mark and len(name) > len(folder) and name.startswith(folder)


def _is_folder(name: str, names: Sequence[str]) -> bool:
    """Return whether any of the sorted `names` is below `name`: then an empty object `name` is a folder mark."""
    at = bisect.bisect_left(names, f"{name}/")
    return at < len(names) and names[at].startswith(f"{name}/")


def _path(url: str) -> str:
    """Return the name of an object: in HTTP it is quoted and ends at a query, elsewhere it may have any character."""
    scheme, _, rest = url.partition("://")
    return unquote(urlsplit(url).path).lstrip("/") if scheme.lower() in HTTP else rest.partition("/")[2].lstrip("/")
