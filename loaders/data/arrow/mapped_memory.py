"""Finds the file that memory is mapped from, and stores bytes in an unnamed file."""

from __future__ import annotations

import bisect
import hashlib
import os
import weakref
from typing import Any, NamedTuple

from penstock.loaders.data.samples.version import Container


class Mapping(NamedTuple):
    """A part of this process's memory that is mapped from a file.

    Attributes:
        begin, end: addresses.
        container: the file's current name, size and time.
        offset: offset of the part in the file.
    """

    begin: int
    end: int
    container: Container
    offset: int


class MappedMemory:
    """The files mapped into this process at the time of creation."""

    def __init__(self) -> None:
        self._mappings: list[Mapping] = []
        with open("/proc/self/maps", "rb") as file:
            for line in file:
                self._add(line.rstrip(b"\n").split(None, 5))
        self._begins = [mapping.begin for mapping in self._mappings]

    def _add(self, fields: list[bytes]) -> None:
        if len(fields) < 6 or not fields[5].startswith(b"/") or fields[5].endswith(b" (deleted)"):
            return
        begin, end = (int(address, 16) for address in fields[0].split(b"-"))
        offset, name = int(fields[2], 16), fields[5].replace(rb"\012", b"\n")
        last = self._mappings[-1] if self._mappings else None
        if last and (last.end, last.container.name) == (begin, name) and last.offset + last.end - last.begin == offset:
            self._mappings[-1] = last._replace(end=end)
            return
        try:
            status = os.stat(name)
        except OSError:
            return
        if status.st_ino == int(fields[4]):  # otherwise another file took its place
            container = Container.of_file(name, status)
            self._mappings.append(Mapping(begin, end, container, offset))

    def find(self, address: int, size: int) -> Mapping | None:
        """Return the mapping that contains `size` bytes at `address`; None for other memory."""
        number = bisect.bisect_right(self._begins, address) - 1
        found = self._mappings[number] if number >= 0 else None
        return found if found is not None and address + size <= found.end else None


class MemoryFile:
    """Bytes in an unnamed file (memfd), open to this user's processes by `path` while this object lives."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("penstock-images", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._fd).atexit = False
        self.path, self._size = b"/proc/%d/fd/%d" % (os.getpid(), self._fd), 0
        self._digest = hashlib.blake2b(digest_size=7)

    def append(self, data: Any) -> int:
        """Append a buffer and return its offset. Raises OSError."""
        offset, view = self._size, memoryview(data).cast("B")
        self._digest.update(view)
        while len(view):
            view = view[os.write(self._fd, view) :]
        self._size += memoryview(data).nbytes
        return offset

    def container(self) -> Container:
        """Return the file's name, size and time; call it after the last append.

        The time is a digest of the bytes: a later source of the same bytes counts as the same.
        """
        os.utime(self._fd, ns=(0, int.from_bytes(self._digest.digest(), "big")))
        return Container.of_file(self.path, os.fstat(self._fd))
