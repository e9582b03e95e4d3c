"""Versions of files and objects, which identify their content."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from datetime import datetime
from typing import NamedTuple

from penstock.loaders.system.file_read import mtime_ns

# Requests for the tag that an object was indexed with, to tell a mirror from a new object of equal size and time. They
# all miss one of three mirrors once in 650 times.
MIRROR_LOOKS = 16
_NOWHERE = -(1 << 63)
_CONTENT_TAG = re.compile(r"[0-9a-fA-F]{32,128}")  # a digest of the content
# A time of change identifies a state if it is older than this: then no later change is in the same second (RFC 9110,
# 8.8.2.2). Programs that make archives and images set all times to one of the last century.
_SETTLED_S, _PLAUSIBLE_S = 600.0, datetime(2001, 1, 1).timestamp()


def stamps_of(status: os.stat_result) -> tuple[int, int, int]:
    """Return mtime, ctime (ns, up to the year 2262) and inode, which show whether a file or folder has changed."""
    return mtime_ns(status), min(status.st_ctime_ns, 2**63 - 1), status.st_ino


class Version(NamedTuple):
    """A state of the content of a file or an object, besides its name and size.

    Attributes:
        number: the number stored in an index: modification time (ns) of a file, or a hash of the ETag of an object.
        ctime_ns, inode: time of the last change of a file, and its inode; 0 if not recorded. For an object, ctime_ns is
            a digest of its size and time of change, 0 if these do not identify a state.
        is_known: False if a change with the same size is not detected: then no copies are stored.
    """

    number: int
    ctime_ns: int = 0
    inode: int = 0
    is_known: bool = True

    @classmethod
    def of_file(cls, status: os.stat_result) -> Version:
        """Return the version of a file; MISSING if it is not a regular file."""
        if not stat.S_ISREG(status.st_mode):
            return MISSING
        return cls(*stamps_of(status))

    @classmethod
    def of_object(cls, etag: str | None, modified: object, size: int) -> Version:
        """Return the version of an object from its tag, or else its time. Some web servers report neither."""
        is_dated = bool(modified) and getattr(modified, "timestamp", lambda: 1)() != 0  # obstore returns 1970 for none
        if not etag and not is_dated:
            return cls(-1 - size, is_known=False)
        # Azure's listings omit the quotes. Some servers alternate between weak and strong tags (RFC 9110, 8.8.3).
        identity = etag.removeprefix("W/").strip('"') if etag else str(modified)
        is_digest = bool(etag) and _CONTENT_TAG.fullmatch(identity) is not None
        return cls(_digest(identity), 0 if is_digest else _identify_time(modified, size))

    @classmethod
    def of_stored_object(cls, number: int, ctime_ns: int = 0) -> Version:
        """Return the version of an object from the numbers in an index."""
        return cls(number, ctime_ns, is_known=number >= 0 or number == _NOWHERE)

    def agrees(self, now: Version) -> bool:
        """Return whether an object with the version `now` may have the same content.

        Mirrors of one address can have tags of their own for equal content: then size and time of change are compared,
        unless a tag is a digest of the content, or the object was new when it was indexed. It is the same object if the
        tag of this version is served as well (see Mirrors).
        """
        return self.number == now.number or (self.ctime_ns == now.ctime_ns != 0 and not self.inode and not now.inode)

    def is_same(self, now: Version) -> bool:
        """Return whether the content is certainly the same as in `now`.

        Programs that copy files restore their times, and many files have equal sizes: the time of the last change and
        the inode distinguish them, if both versions have them.
        """
        are_stamped = self.inode and now.inode
        return self.is_known and now.is_known and (self[:3] == now[:3] if are_stamped else self.agrees(now))


def _identify_time(modified: object, size: int) -> int:
    """Return a digest of the time of change of an object and its size; 0 if the time is new or set by a program."""
    at = modified.timestamp() if isinstance(modified, datetime) and modified.tzinfo is not None else 0.0
    return _digest(f"{at:.0f} {size}") if _PLAUSIBLE_S <= at <= time.time() - _SETTLED_S else 0


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


# The version of a file that is missing, inaccessible to this user, or not a regular file: reading it raises.
MISSING = Version(_NOWHERE)


class Container(NamedTuple):
    """The state of a file or an object with samples when it was indexed.

    Attributes:
        name: absolute path, or URL.
        size: number of bytes.
        version: version of its content.
    """

    name: bytes
    size: int
    version: Version

    @classmethod
    def of_file(cls, path: bytes, status: os.stat_result) -> Container:
        return cls(path, status.st_size, Version.of_file(status))

    def is_unchanged(self) -> bool:
        """Return whether the file still has this size and version (3 us)."""
        try:
            now = Container.of_file(self.name, os.stat(self.name))
        except OSError:
            return self.version.number == MISSING.number
        return now.size == self.size and self.version.is_same(now.version)
