"""Expands URL patterns: ranges in braces, and * if the storage can list its objects."""

from __future__ import annotations

import fnmatch
import re

from penstock.loaders.data.files.path_patterns import expand_braces
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.remote.path_or_url import HTTP
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.pipelines.errors import LoaderError, printable

_WILDCARD = re.compile(r"[*?\[]")


def expand_url(pattern: bytes, access: Access = DEFAULT) -> dict[bytes, RemoteObject | None]:
    """Return the URLs of `pattern` with their entries in the storage's listing.

    Braces are expanded in order, with None as entry; the matches of a * are sorted. Raises LoaderError E-NODATA if a *
    matches nothing, ValueError for a * in an HTTP URL, which cannot be listed.
    """
    urls: dict[bytes, RemoteObject | None] = {}
    store = ObjectStore(access)
    for one in expand_braces(pattern):
        url = one.decode()
        if not is_url_pattern(one):
            urls[one] = None
            continue
        refuse_http(url)
        listed = store.list(_WILDCARD.split(url, maxsplit=1)[0]).items()
        found = {name.encode(): about for name, about in listed if fnmatch.fnmatchcase(name, url)}
        if not found:
            fix = "check the pattern; in objects' names, * matches any characters, ? matches one"
            raise LoaderError("E-NODATA", "no object matches this pattern", fix=fix, path=one)
        urls |= found
    return urls


def is_url_pattern(url: bytes) -> bool:
    """Return whether a URL needs a listing of the storage. In HTTP a ? begins a query, elsewhere it is a wildcard."""
    if url.lower().startswith(HTTP):
        return b"*" in url.partition(b"?")[0]
    return b"*" in url or b"?" in url


def refuse_http(url: str) -> None:
    """Raise ValueError for an HTTP URL, which cannot be listed."""
    if url.encode().lower().startswith(HTTP):
        raise ValueError(
            "HTTP cannot list files: use braces, such as train-{0000..0127}.tar, or pass a list or a table "
            f"of images, got {printable(url)}"
        )
