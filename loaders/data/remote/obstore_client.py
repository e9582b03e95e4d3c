"""Reads ranges of objects in S3, GCS, Azure and at HTTP addresses by obstore."""

from __future__ import annotations

import base64
import bisect
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from penstock.loaders.data.remote.certificates import ca_bundle, read_certificates
from penstock.loaders.data.remote.remote_object import Listed, Part, RemoteObject
from penstock.loaders.data.remote.storage_errors import ENDPOINTS, refuses_head
from penstock.loaders.data.remote.store_profile import profile_settings
from penstock.loaders.data.samples.version import Version
from penstock.pipelines.errors import LoaderError

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
HTTP = ("http", "https")
PLAIN = "!$&'()*+,;=:@-._~[]|\\^"  # characters that obstore does not quote in the path of an HTTP address
_SIGNED_FOR = timedelta(hours=1)
_LIMIT_S = 30.0  # of a store that only signs
# Settings with which a request needs more than an address.
_NOT_PLAIN = ("AWS_S3_EXPRESS", "AWS_SSE_CUSTOMER_KEY_BASE64")
_TRUE = ("1", "true", "on", "yes", "y")  # as obstore reads them
# Consoles and tools store an empty folder "new_data" as an object with this name, or with this suffix.
_FOLDER_MARK = "_$folder$"


class ObstoreClient:
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
        bundle = ca_bundle(scheme) if scheme != "http" else None
        if bundle is not None and bundle != os.environ.get("SSL_CERT_FILE"):  # which obstore reads itself
            self._client["root_certificate"] = read_certificates(bundle)
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

    def plain_request(self, url: str) -> tuple[str, dict[str, str]] | None:
        """Return a URL and headers with which any HTTP client can read an object; None if only this client can.

        In S3 the URL is signed (12 us). It is valid for an hour, or until the credentials expire. Raises
        as read() if they cannot be found.
        """
        store = next(iter(self._stores.values()), None) or self._open_store(_LIMIT_S)
        if isinstance(store, self._obstore.store.HTTPStore):
            scheme, host, path, query, _ = urlsplit(url)
            user, _, host = host.rpartition("@")
            words = base64.b64encode(unquote(user).encode()).decode()
            address = f"{scheme}://{host}{path or '/'}{'?' if query else ''}{query}"
            return quote(address, safe=f"/%?{PLAIN}"), {"Authorization": f"Basic {words}"} if user else {}
        if not isinstance(store, self._obstore.store.S3Store) or any(map(os.environ.get, _NOT_PLAIN)):
            return None
        is_public = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in _TRUE
        if is_public:  # the address is that of a signed URL without its signature
            keys = {"access_key_id": "-", "secret_access_key": "-", "session_token": "-"}
            more = {name: value for name, value in self._more.items() if name != "credential_provider"}
            store = self._obstore.store.from_url(self._prefix[:-1], client_options=self._client, **(more | keys))
        signed = str(self._obstore.sign(store, "GET", self._path(url), _SIGNED_FOR))
        return signed.partition("?")[0] if is_public else signed, {}

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


def _path(url: str) -> str:
    """Return the name of an object: in HTTP it is quoted and ends at a query, elsewhere it may have any character."""
    scheme, _, rest = url.partition("://")
    return unquote(urlsplit(url).path).lstrip("/") if scheme.lower() in HTTP else rest.partition("/")[2].lstrip("/")
