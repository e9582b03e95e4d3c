"""Functions for places of data that may be paths or URLs."""

from __future__ import annotations

import os

from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.loaders.system.file_read import read_error
from penstock.pipelines.errors import LoaderError, hide_secrets

HTTP = (b"http://", b"https://")


def absolute(place: bytes) -> bytes:
    """Return an absolute path, or a URL unchanged."""
    return place if is_url(place) else os.path.abspath(place)


def join(folder: bytes, name: bytes) -> bytes:
    """Return the place of `name` in `folder`; `name` itself if it is a URL or an absolute path."""
    return name if is_url(name) else os.path.join(folder, name)


def without_query(place: bytes) -> bytes:
    """Return a URL without its query, or a path unchanged."""
    return place.partition(b"?")[0] if is_url(place) else place


def folder_of(place: bytes) -> bytes:
    """Return the folder of a path or URL."""
    return os.path.dirname(without_query(place))


def without_key(place: bytes) -> bytes:
    """Return a place without the user of a URL, and without an HTTP query, which may contain a signature."""
    if place.lower().startswith(HTTP):
        return hide_secrets(place)
    if not is_url(place):
        return place
    protocol, _, rest = place.partition(b"://")
    host, slash, below = rest.partition(b"/")
    return protocol + b"://" + host.rpartition(b"@")[2] + slash + below


def is_file(place: bytes, access: Access = DEFAULT) -> bool:
    """Return whether `place` is an existing file or object. Raises LoaderError E-ACCESS, E-READ for a URL."""
    return find_object(ObjectStore(access), place) is not None if is_url(place) else os.path.isfile(place)


def find_object(store: ObjectStore, url: bytes) -> RemoteObject | None:
    """Return size and version of an object; None if it is missing. Raises LoaderError E-ACCESS, E-READ."""
    try:
        return store.stat(url.decode("utf-8", "surrogateescape"))
    except LoaderError as error:
        if error.code != "E-MISSING":
            raise
        return None


def read_whole(place: bytes, access: Access = DEFAULT) -> bytes:
    """Return all bytes of a small file or object. Raises LoaderError."""
    if is_url(place):
        store, url = ObjectStore(access), place.decode()
        found = store.stat(url)
        return bytes(store.read(url, 0, *found).data)
    try:
        with open(place, "rb") as file:
            return file.read()
    except OSError as error:
        raise read_error(error, place) from error
