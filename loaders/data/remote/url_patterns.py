"""Expands URL patterns: ranges in braces, and * if the storage can list its objects."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from functools import partial

from penstock.loaders.data.files.path_patterns import expand_braces
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.asked_once import list_once
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.remote.path_or_url import HTTP
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.pipelines.errors import LoaderError, printable

_WILDCARD = re.compile(r"[*?\[]")
_SLASHES_OF_BUCKET = 3
_PATTERN = re.compile(rb"[*?\[{]")


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
        found = {name.encode(): about for name, about in list_once(one, partial(_list, store, url)).items()}
        if not found:
            fix = "check the pattern; in objects' names, * matches any characters, ? matches one"
            raise LoaderError("E-NODATA", "no object matches this pattern", fix=fix, path=one)
        urls |= found
    return urls


def _list(store: ObjectStore, url: str) -> dict[str, RemoteObject]:
    listed = store.list(_WILDCARD.split(url, maxsplit=1)[0]).items()
    return {name: about for name, about in listed if fnmatch.fnmatchcase(name, url)}


def is_url_pattern(url: bytes) -> bool:
    """Return whether a URL needs a listing of the storage. In HTTP a ? begins a query, elsewhere it is a wildcard."""
    if url.lower().startswith(HTTP):
        return b"*" in url.partition(b"?")[0]
    return b"*" in url or b"?" in url


def is_url_folder(path: bytes) -> bool:
    """Return whether a URL is that of a folder: it ends with a slash, or its last part has no dot."""
    name = path.rpartition(b"/")[2]
    return is_url(path) and not (b"." in name or b"?" in path or is_url_pattern(path))


def split_specs(specs: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """Return the deepest folder that contains the data at URLs or patterns, and these relative to it.

    A folder is b"name/", in the folder that contains it; a whole bucket is b"".
    """
    places = [spec.rstrip(b"/") + b"/" if is_url_folder(spec) else spec for spec in specs]
    folders = []
    for place in places:
        before = _PATTERN.split(place, maxsplit=1)[0]
        is_in_bucket = before == place and before.count(b"/") > _SLASHES_OF_BUCKET
        folders.append((before.removesuffix(b"/") if is_in_bucket else before).rpartition(b"/")[0])
    root = folders[0]
    while not all((folder + b"/").startswith(root + b"/") for folder in folders):
        root = root.rpartition(b"/")[0]
    return root, [place[len(root) + 1 :] for place in places]


def refuse_http(url: str) -> None:
    """Raise ValueError for an HTTP URL, which cannot be listed."""
    if url.encode().lower().startswith(HTTP):
        raise ValueError(
            "HTTP cannot list files: use braces, such as train-{0000..0127}.tar, or pass a list or a table "
            f"of images, got {printable(url)}"
        )
