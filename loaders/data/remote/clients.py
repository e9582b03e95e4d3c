"""Opens one client per bucket or host, and a new one when the settings for signing change."""

from __future__ import annotations

import functools
import os
from urllib.parse import quote, unquote, urlsplit

from penstock.loaders.data.remote.fsspec_client import FsspecClient
from penstock.loaders.data.remote.obstore_client import HTTP, SCHEMES, ObstoreClient
from penstock.loaders.data.remote.store_profile import profile_paths

# Settings of a client besides its address: a new client is opened when any of these changes.
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "MSI_", "IDENTITY_", "HF_")
_PLAIN = "!$&'()*+,;=:@-._~[]|\\^"  # characters that obstore does not quote in the path of an HTTP address

Client = ObstoreClient | FsspecClient


def client_of(url: str) -> Client:
    """Return the client for the bucket or host of `url`."""
    scheme, host, path, query, _ = urlsplit(url)
    scheme, base = scheme.lower(), ""
    if scheme in HTTP and quote(unquote(path), safe=f"/{_PLAIN}") != quote(path, safe=f"/%{_PLAIN}"):
        base = path  # such as a quoted slash, which must be sent unchanged: only the address of a client is
    if query and scheme in HTTP:
        base = f"{base or '/'}?{query}"
    return open_client(scheme, host + base, _read_settings())


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
def open_client(scheme: str, host: str, settings: tuple[object, ...]) -> Client:
    return ObstoreClient(scheme, host) if scheme in SCHEMES else FsspecClient(scheme, host)
