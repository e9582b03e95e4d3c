"""Names a fixed revision in URLs of the Hugging Face Hub."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from penstock.loaders.data.remote.object_store import has_fsspec
from penstock.loaders.data.remote.storage_errors import as_loader_error

_REPOSITORY = re.compile(
    r"(?P<root>hf://(?!buckets/)(?:(?P<kind>dataset|space|model)s/)?(?P<name>[^/@*?{\[]+/[^/@*?{\[]+))"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?P<path>/.*)?",
    re.IGNORECASE | re.DOTALL,
)
_COMMIT = re.compile("[0-9a-f]{40}")


def pin_url(url: bytes) -> bytes:
    """Return a URL of the Hugging Face Hub with the commit that its branch or tag has now; any other URL as it is.

    A commit that is pushed later changes nothing for who reads the returned URL. Raises LoaderError as storage_errors
    does, if the Hub cannot be asked.
    """
    found = _REPOSITORY.fullmatch(url.decode("utf-8", "surrogateescape"))
    revision = None if found is None else found["revision"]
    if found is None or (revision is not None and _COMMIT.fullmatch(revision)):
        return url
    if not has_fsspec():  # opening the URL will say so
        return url
    try:
        from huggingface_hub import HfApi
    except ImportError:  # opening the URL will say what is missing
        return url
    options: dict[str, Any] = {"revision": unquote(revision)} if revision else {}
    try:
        commit = HfApi().repo_info(found["name"], repo_type=(found["kind"] or "model").lower(), **options).sha
    except Exception as error:
        raise as_loader_error(error, url.decode("utf-8", "surrogateescape")) from None
    return f"{found['root']}@{commit}{found['path'] or ''}".encode("utf-8", "surrogateescape") if commit else url


def without_commit(url: bytes) -> bytes:
    """Return a URL of the Hugging Face Hub without the commit that it names; any other URL as it is."""
    found = _REPOSITORY.fullmatch(url.decode("utf-8", "surrogateescape"))
    if found is None or not _COMMIT.fullmatch(found["revision"] or ""):
        return url
    return f"{found['root']}{found['path'] or ''}".encode("utf-8", "surrogateescape")
