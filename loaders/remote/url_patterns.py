"""Expands URLs that stand for several objects: ranges in braces, and * where the storage can list its objects."""

from __future__ import annotations

import fnmatch

from penstock.loaders.remote.object_store import ObjectStore, without_secrets
from penstock.loaders.sources.path_patterns import expand_braces
from penstock.pipelines.errors import LoaderError


def expand_url(pattern: bytes) -> list[bytes]:
    """Return the URLs that `pattern` stands for: those of braces in their order, those of a * sorted.

    Raises LoaderError E-NODATA if a * finds nothing, ValueError for a * in an HTTP URL, which cannot be listed.
    """
    urls: list[bytes] = []
    store = ObjectStore()
    for one in expand_braces(pattern):
        url = one.decode()
        if "*" not in url:
            urls.append(one)
            continue
        if url.startswith(("http:", "https:")):
            raise ValueError(
                f"HTTP cannot list files: name them with braces, such as train-{{0000..0127}}.tar, got {url!r}"
            )
        found = [name for name in store.list(url.partition("*")[0]) if fnmatch.fnmatchcase(name, url)]
        if not found:
            fix = "check the pattern; * stands for any characters of the objects' names"
            raise LoaderError("E-NODATA", "no object matches this pattern", fix=fix, path=without_secrets(url).encode())
        urls += [name.encode() for name in found]
    return urls
