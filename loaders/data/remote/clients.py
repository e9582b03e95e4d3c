"""Opens one client per bucket or host, and a new one when the settings for signing change."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from penstock.loaders.data.remote.certificates import VARIABLES
from penstock.loaders.data.remote.fsspec_client import FsspecClient
from penstock.loaders.data.remote.obstore_client import HTTP, PLAIN, SCHEMES, ObstoreClient
from penstock.loaders.data.remote.store_profile import profile_paths

# Settings of a client besides its address: a new client is opened when any of these changes.
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "MSI_", "IDENTITY_", "HF_", "STORAGE_EMULATOR_HOST", *VARIABLES)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_NAMES = (*_SETTINGS, *_PROXIES, *map(str.lower, _PROXIES))


class _Seen(NamedTuple):
    """The environment as it was last seen: its settings of clients, and the files that they name."""

    environment: dict[object, object]
    settings: tuple[object, ...]
    paths: list[str]


_seen = _Seen({}, (), [])

Headers = tuple[tuple[str, str], ...]
Client = ObstoreClient | FsspecClient


def client_of(url: str, headers: Headers = ()) -> Client:
    """Return the client for the bucket or host of `url`.

    headers: names and values for requests by HTTP.
    """
    scheme, host, path, query, _ = urlsplit(url)
    scheme, base = scheme.lower(), ""
    if scheme in HTTP and quote(unquote(path), safe=f"/{PLAIN}") != quote(path, safe=f"/%{PLAIN}"):
        base = path  # such as a quoted slash, which must be sent unchanged: only the address of a client is
    if query and scheme in HTTP:
        base = f"{base or '/'}?{query}"
    return open_client(scheme, host + base, _read_settings(), headers if scheme in HTTP else ())


def _read_settings() -> tuple[object, ...]:
    """Return all settings of clients: when they change, for example in a notebook, a new client is opened."""
    global _seen
    # Without decoding: it takes 20 us, and this is called for each request.
    environment = dict(getattr(os.environ, "_data", os.environ))
    seen = _seen
    if environment != seen.environment:
        found = sorted((name, value) for name, value in os.environ.items() if name.startswith(_NAMES))
        paths = [*profile_paths(), *(os.environ[name] for name in VARIABLES if os.environ.get(name))]
        seen = _seen = _Seen(environment, tuple(found), paths)
    return seen.settings, *map(_stamp, seen.paths)


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=256)  # one per host; signed and unusual addresses need one each
def open_client(scheme: str, host: str, settings: tuple[object, ...], headers: Headers) -> Client:
    return ObstoreClient(scheme, host, dict(headers)) if scheme in SCHEMES else FsspecClient(scheme, host)
