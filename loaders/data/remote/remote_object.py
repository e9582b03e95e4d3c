"""What a storage says about an object, and the parts of it that are read."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.loaders.data.samples.version import Version


class RemoteObject(NamedTuple):
    """The size and version of an object.

    Attributes:
        size: number of bytes.
        version: version of its content.
    """

    size: int
    version: Version


class Part(NamedTuple):
    """A range of an object.

    Attributes:
        data: the bytes, as an object with the buffer protocol.
        found: the object that contains them.
    """

    data: Any
    found: RemoteObject


Folder = tuple[list[str], dict[str, RemoteObject]]  # folders, objects by URL
Named = tuple[str, RemoteObject]  # an object with its URL
Listed = tuple[list[str], list[Named]]  # folders, objects
