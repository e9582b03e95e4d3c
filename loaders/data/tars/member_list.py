"""Reads lists of a tar's members that other programs write next to it, so that not every header must be read."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.tars.tar_headers import BLOCK, Member, OpenTar, TarReader
from penstock.loaders.system.file_read import open_regular
from penstock.pipelines.errors import LoaderError, printable

_DALI = (b"v1.2 ", b"v1.1 ")  # versions of wds2idx
_CHECKED = 8  # headers that are read in random places, besides the first, the last, and unusual ones
_MOST_BYTES = 1 << 30


class UnusableListError(ValueError):
    """A list of members is missing, cannot be read, or does not agree with its tar."""


def read_list(tar: OpenTar, suffix: str, store: ObjectStore) -> list[Member]:
    """Return the members in the list next to a tar, its name with `suffix` instead of "tar", by position.

    Formats: wds2idx of DALI ("v1.2", the number of samples, then suffix, position, size and name of each member), and
    JSON of hfutils and webshart ("files": name -> "offset" and "size" or "length"). Raises UnusableListError;
    LoaderError if the storage fails.
    """
    name = tar.container.name
    stem, dot, query = name.partition(b"?") if is_url(name) else (name, b"", b"")
    content = _read_whole(stem.removesuffix(b".tar") + b"." + os.fsencode(suffix) + dot + query, store)
    try:
        if content.startswith(_DALI):
            members = list(_parse_dali(content))
        else:
            document = json.loads(content)
            members = [
                Member(os.fsencode(name), place["offset"], place["size"] if "size" in place else place["length"])
                for name, place in document["files"].items()
            ]
            if document.get("filesize", tar.container.size) != tar.container.size:
                raise UnusableListError("it was made for a tar of another size")
    except UnusableListError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UnusableListError("it is not a list of wds2idx, hfutils or webshart") from None
    if not members or not all(type(part) is int for member in members for part in member[1:]):
        raise UnusableListError("it has no members with whole numbers as places")
    members.sort(key=lambda member: member.start)
    return members


def _read_whole(path: bytes, store: ObjectStore) -> bytes:
    try:
        if is_url(path):
            found = store.stat(path.decode())
            if found.size <= _MOST_BYTES:
                return bytes(store.read(path.decode(), 0, found.size, found.version).data)
        else:
            with open(open_regular(path), "rb") as file:
                if os.fstat(file.fileno()).st_size <= _MOST_BYTES:
                    return file.read()
    except OSError as error:
        raise UnusableListError(error.strerror or "it cannot be read") from None
    except LoaderError as error:
        if error.code != "E-MISSING":
            raise
        raise UnusableListError("it does not exist") from None
    raise UnusableListError("it is too large")


def _parse_dali(content: bytes) -> Iterator[Member]:
    """Yield the members in a file of wds2idx. Raises ValueError, UnusableListError."""
    version, *lines = content.rstrip(b"\n").split(b"\n")
    if version.startswith(b"v1.1 "):
        raise UnusableListError("version 1.1 of wds2idx does not list names")
    if int(version[5:]) != len(lines):
        raise UnusableListError("its number of samples differs from its first line")
    for line in lines:
        parts = line.split(b" ")
        for suffix, start, size, name in zip(*[iter(parts)] * 4, strict=True):
            if b"\\" in name or not name.endswith(suffix):  # GNU tar escapes unusual characters
                raise UnusableListError(f"the name {printable(name)} has a space, or is escaped")
            yield Member(name, int(start), int(size))


class ListedReader(TarReader):
    """Yields the members in a list of a tar, and reads only some of its headers.

    The list must account for the whole tar: each member begins a header after the padding of the last, and the tar ends
    after the last one. Where there is more between two members, such as long names and folders, it is read, except for
    the most frequent distance (an extended header before each member, for example), of which some are.
    """

    def __init__(self, tar: OpenTar, listed: list[Member]) -> None:
        super().__init__(tar)
        self._listed = listed

    def members(self) -> Iterator[Member]:
        """Yield the regular files. Raises as TarReader.members, and UnusableListError if list and tar differ."""
        ends = [0, *(start + size + -size % BLOCK for _, start, size in self._listed)]
        gaps = [start - end for (_, start, _), end in zip(self._listed, ends, strict=False)]
        if min(gaps) < BLOCK or any(gap % BLOCK for gap in gaps) or min(size for *_, size in self._listed) < 0:
            raise UnusableListError("its members overlap, or do not begin at multiples of 512 bytes")
        if ends[-1] > self.size:
            raise UnusableListError("its members need more bytes than the tar has")
        usual = {BLOCK, Counter(gaps).most_common(1)[0][0]}
        last, draw = len(gaps) - 1, random.Random(self.size)  # noqa: S311
        checked = {0, last, *(draw.randrange(last + 1) for _ in range(_CHECKED))}
        for number, (member, (begin, end)) in enumerate(zip(self._listed, pairwise(ends), strict=True)):
            if number in checked or gaps[number] not in usual:
                self.position = begin
                if next(super().members(), None) != member:
                    raise UnusableListError(f"the tar differs at {printable(member.name)}")
            self.position = end
            yield member
        if next(super().members(), None) is not None:
            raise UnusableListError("the tar has more members")

    def read(self, start: int, count: int) -> bytes:
        """Return `count` bytes from `start` on."""
        if start >= self._page_end:
            self._measure_distance(start)
        return super().read(start, count)
