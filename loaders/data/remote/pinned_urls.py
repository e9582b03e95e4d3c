"""Adds a fixed revision to URLs of the Hugging Face Hub."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from penstock.loaders.data.remote.fsspec_client import has_fsspec
from penstock.loaders.data.remote.storage_errors import as_loader_error

_REPOSITORY = re.compile(
    r"(?P<root>hf://(?!buckets/)(?:(?P<kind>dataset|space|model)s/)?(?P<name>[^/@*?{\[]+/[^/@*?{\[]+))"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?P<path>/.*)?",
    re.IGNORECASE | re.DOTALL,
)
_COMMIT = re.compile("[0-9a-f]{40}")


def pin_url(url: bytes) -> bytes:
    """Return a URL of the Hugging Face Hub with the current commit of its branch or tag; any other URL unchanged.

    Later commits do not affect readers of the returned URL. Raises LoaderError as storage_errors does if the Hub cannot
    be reached.
    """
    found = _REPOSITORY.fullmatch(url.decode("utf-8", "surrogateescape"))
    revision = None if found is None else found["revision"]
    if found is None or (revision is not None and _COMMIT.fullmatch(revision)):
        return url
    if not has_fsspec():  # opening the URL will report this
        return url
    try:
        from huggingface_hub import HfApi
    except ImportError:  # opening the URL will report the missing package
        return url
    options: dict[str, Any] = {"revision": unquote(revision)} if revision else {}
    try:
        commit = HfApi().repo_info(found["name"], repo_type=(found["kind"] or "model").lower(), **options).sha
    except Exception as error:
        raise as_loader_error(error, url.decode("utf-8", "surrogateescape")) from None
    return f"{found['root']}@{commit}{found['path'] or ''}".encode("utf-8", "surrogateescape") if commit else url


def without_commit(url: bytes) -> bytes:
    """Return a URL of the Hugging Face Hub without its commit; any other URL unchanged."""
    found = _REPOSITORY.fullmatch(url.decode("utf-8", "surrogateescape"))
    if found is None or not _COMMIT.fullmatch(found["revision"] or ""):
        return url
    return f"{found['root']}{found['path'] or ''}".encode("utf-8", "surrogateescape")
