"""Pins a repository of Hugging Face to the commit that it has when it is opened, so that a run reads one revision."""

from __future__ import annotations

from typing import Any

from penstock.loaders.remote.storage_errors import as_loader_error

_SCHEME = b"hf://"
_PREFIXES = {"dataset": "datasets/", "space": "spaces/", "model": ""}
_COMMIT_DIGITS = 40


def pin_revision(url: bytes) -> bytes:
    """Return a URL of hf:// with the commit of its branch; any other URL as it is. Raises LoaderError.

    Buckets have no commits, and a URL that names one is pinned already.
    """
    if not url.lower().startswith(_SCHEME):
        return url
    try:
        import fsspec

        files: Any = fsspec.filesystem("hf")
        found = files.resolve_path(url.decode("utf-8", "surrogateescape"))
        kind = getattr(found, "repo_type", None)
        if kind not in _PREFIXES or _is_commit(found.revision):
            return url
        commit = files._api.repo_info(found.repo_id, revision=found.revision, repo_type=kind).sha
    except (ImportError, AttributeError):  # which opening it will say; or another file system of this name
        return url
    except Exception as error:
        raise as_loader_error(error, url.decode("utf-8", "surrogateescape")) from None
    slash = "/" if url.endswith(b"/") and found.path_in_repo else ""
    return f"hf://{_PREFIXES[kind]}{found.repo_id}@{commit}/{found.path_in_repo}{slash}".encode()


def _is_commit(revision: Any) -> bool:
    text = str(revision)
    return len(text) == _COMMIT_DIGITS and all(digit in "0123456789abcdef" for digit in text)
