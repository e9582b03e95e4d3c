"""Reads the headers of a tar, on disk or in object storage, to find the bytes of each member."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.loaders.data.files.left_out import BROKEN_LINK, LINK, NOT_REGULAR
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.samples.samples_writer import LeftOut
from penstock.loaders.data.samples.version import Container
from penstock.loaders.system.file_read import open_regular, read_error
from penstock.loaders.system.retries import with_retries
from penstock.pipelines.errors import LoaderError

BLOCK = 512  # bytes: headers and contents begin at multiples of it
FOLDER, AFTER_END, NO_END = "folder", "data after the end of a tar", "tar without an end-of-archive block"
LONG_END = "more zeros after the end of a tar than padding"
_PAGE = 4096  # bytes: a label next to an image is often in the same page as the next header
MOST_REMOTE = 1 << 20  # bytes of a request that reads the members with their headers
# A request for a header takes as long as reading so many bytes: 20 ms at 3 MB/s, for each of many tars at once.
_REQUEST_BYTES = 1 << 16
_ZEROS = bytes(BLOCK)
_AFTER_END_BYTES = 1 << 16  # bytes read after the end, to check for padding
_MOST_EXTENDED_BYTES = 1 << 20  # of a long name or a pax header
_REGULAR, _FOLDER, _HARD_LINK, _SYMLINK, _NO_DATA = b"0\0007", b"5", b"1", b"2", b"123456"
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"xX", b"g", b"L", b"K"
_EXTENDED = _PAX + _PAX_GLOBAL + _LONG_NAME + _LONG_LINK
_SPARSE, _CONTINUED = b"S", b"M"
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}
_WRITE_AGAIN = "copy or write this tar again; tar -tvf names its members"
Values = dict[bytes, bytes]  # values of a member in extended headers: b"path", b"linkpath", b"size"


class OpenTar(NamedTuple):
    """An open tar.

    Attributes:
        container: the file's current name, size and version.
        read: function of (start, number of bytes); may return fewer bytes, but returns none only at the end.
        most: largest number of bytes to read at once; _PAGE for a file.
    """

    container: Container
    read: Callable[[int, int], bytes]
    most: int


@contextlib.contextmanager
def open_tar(path: bytes, store: ObjectStore) -> Iterator[OpenTar]:
    """Open a tar by path or URL. Raises LoaderError, E-CHANGED if it was modified while open."""
    if is_url(path):
        url = path.decode()
        found = store.stat(url)

        def read(start: int, count: int) -> bytes:
            count = min(count, found.size - start)
            return bytes(store.read(url, start, count, found.version).data) if count > 0 else b""

        yield OpenTar(Container(path, *found), read, MOST_REMOTE)
        return
    try:
        fd = with_retries(lambda: open_regular(path))
        try:
            before = os.fstat(fd)
            container = Container.of_file(path, before)
            yield OpenTar(container, lambda start, count: os.pread(fd, count, start), _PAGE)
            after = os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise read_error(error, path) from error
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise LoaderError("E-CHANGED", "the tar was modified while it was indexed", path=path)


class Member(NamedTuple):
    """A regular file in a tar: `size` bytes from `start` on."""

    name: bytes
    start: int
    size: int


class TarReader:
    """Reads the headers of an open tar one after another, and small contents, all by pread or by requests.

    Each header says where the next one begins, so a request waits for the last one. If members are large, a request
    reads a header with the small members next to it: a page, or more if these need more. If members are small, it reads
    up to OpenTar.most bytes.

    It supports v7, ustar, GNU (long names, numbers in base 256) and pax headers. An archive without end-of-archive
    blocks is accepted if its last member is complete, and counted. Data after an end-of-archive block is ignored.

    Attributes:
        path, size: path and size in bytes of the file.
        left_out: entries that are not regular files, and unusual ends.
        position: where the next header begins.
    """

    def __init__(self, tar: OpenTar, end: int | None = None) -> None:
        """Read the headers of `tar`, up to byte `end` if that is given."""
        self.path, self.size, self.position = tar.container.name, tar.container.size if end is None else end, 0
        self.left_out = LeftOut()
        self._tar = tar
        self._window, self._window_start, self._window_size = b"", 0, _PAGE
        self._page, self._page_start = _PAGE, 0  # bytes that a header needs, and where the last ones would be read
        self._page_end = 0 if tar.most > _PAGE else 1 << 63
        self._distance = 0.0  # mean of the last distances between such places
        self._earlier: dict[bytes, Member] | None = None

    def members(self) -> Iterator[Member]:
        """Yield the regular files, in order; hard links have the place of the earlier member that they link to.

        Raises LoaderError: E-FORMAT for a compressed file or one that is not a tar, E-TRUNC for a truncated one,
        E-CORRUPT for a damaged header, E-UNSUPPORTED for sparse members and parts of multi-volume archives, E-CHANGED
        for a file that shrinks while it is read; OSError.
        """
        always: Values = {}
        more: Values = {}
        while (header := self._next_header()) is not None:
            at, kind = self.position, header[156:157]
            start = at + BLOCK
            try:
                size = _number(header[124:136])
                if kind in _EXTENDED:
                    found = self._read_extended(kind, start, size)
                    (always if kind == _PAX_GLOBAL else more).update(found)
                    self.position = start + size + -size % BLOCK
                    continue
                values = {**always, **more} if always or more else more
                name = values.get(b"path") or _name(header)
                size = int(values.get(b"size") or size)
                if size < 0:
                    raise ValueError("negative size")
            except ValueError:
                raise self._damaged(at) from None
            self._refuse_unsupported(kind, name, values)
            if kind in _NO_DATA:
                size = 0
            if start + size > self.size:
                raise self._cut(f"the member {os.fsdecode(name)!a} needs {start + size - self.size:,} more bytes")
            self.position = start + size + -size % BLOCK
            more = {}
            member = self._take(kind, Member(name, start, size), values.get(b"linkpath") or _text(header[157:257]), at)
            if member is not None:
                yield member
        if more:
            raise self._cut("a long name or a pax header has no member")

    def read(self, start: int, count: int) -> bytes:
        """Return `count` bytes from `start` on. Raises OSError, LoaderError E-CHANGED if the file shrank."""
        begin = start - self._window_start
        if begin < 0 or begin + count > len(self._window):
            if 0 <= begin <= len(self._window) <= self._window_size <= _REQUEST_BYTES:  # only its header was read
                self._page = min(max(self._page, (begin + count) * 3 // 2), _REQUEST_BYTES, self._tar.most)
            begin = self._fill(start, count)
        if start <= self._page_end <= start + count:
            self._page_end = start + count + 2 * BLOCK  # the next header comes with it
        return self._window[begin : begin + count]

    def _next_header(self) -> bytes | None:
        """Return the header at `position`, None at the end."""
        at = self.position
        if at + BLOCK > self.size:
            self._check_remainder(at)
            if self.size > 0:
                self.left_out.add(NO_END, self.path)
            return None
        begin = at - self._window_start
        if at >= self._page_end:
            self._measure_distance(at)
        if begin < 0 or begin + BLOCK > len(self._window):
            begin = self._fill(at, BLOCK)
        header = self._window[begin : begin + BLOCK]
        if header == _ZEROS:
            rest = self.read(at, min(_AFTER_END_BYTES, self.size - at))
            if rest.strip(b"\0"):
                self.left_out.add(AFTER_END, self.path)
            elif self.size - at > _AFTER_END_BYTES:
                self.left_out.add(LONG_END, self.path)
            return None
        if not _is_sound(header):
            raise self._damaged(at)
        return header

    def _check_remainder(self, at: int) -> None:
        """Raise LoaderError if the file ends inside the header at `at`."""
        rest = self._pread(at, self.size - at, BLOCK) if at < self.size else b""
        if at == 0 and rest:
            raise self._damaged(0)
        if rest.strip(b"\0"):
            raise self._cut("it ends in the middle of a header")

    def _measure_distance(self, at: int) -> None:
        """Update the mean distance between the places where requests for a page each would begin."""
        distance = at - self._page_start
        self._distance += (distance - self._distance) / (8 if self._distance else 1)
        self._page_start, self._page_end = at, at + self._page

    def _fill(self, start: int, count: int) -> int:
        """Read the window from `start` on, of at least `count` bytes; return 0, where `start` is in it."""
        self._window_size = min(4 * self._window_size, self._tar.most)
        if self._distance > _REQUEST_BYTES or not self._window:
            self._window_size = self._page
            self._page -= (self._page - _PAGE) // 32  # a single large label does not matter for long
        most = max(self._window_size, count + self._page * (count > BLOCK))  # with the header after a label
        self._window, self._window_start = self._pread(start, count, most), start
        return 0

    def _pread(self, start: int, least: int, most: int) -> bytes:
        """Return `least` to `most` bytes from `start` on."""
        data = with_retries(lambda: self._tar.read(start, most))
        if len(data) >= least:
            return data
        if not data:
            raise LoaderError("E-CHANGED", "the file shrank while it was indexed", path=self.path)
        # Network file systems may return less than requested.
        return data + self._pread(start + len(data), least - len(data), most - len(data))

    def _read_extended(self, kind: bytes, start: int, size: int) -> Values:
        """Return the values of a long name or a pax header. Raises ValueError for a damaged one."""
        if start + size > self.size:
            raise self._cut("it ends in the middle of a header")
        if not 0 <= size <= _MOST_EXTENDED_BYTES:
            raise ValueError("too long")
        data = self.read(start, size)
        if kind in (_LONG_NAME, _LONG_LINK):
            return {b"path" if kind == _LONG_NAME else b"linkpath": _text(data)}
        return _parse_pax(data)

    def _take(self, kind: bytes, member: Member, target: bytes, at: int) -> Member | None:
        """Return the member of the header at `at`; None for anything but a regular file, which is counted."""
        if kind == _HARD_LINK:
            if self._earlier is None:  # few archives have links, so earlier members are collected only if one occurs
                before = TarReader(self._tar, at)
                self._earlier = {earlier.name: earlier for earlier in before.members()}
            linked = self._earlier.get(target)
            if linked is None:
                self.left_out.add(BROKEN_LINK, member.name)
                return None
            member = linked._replace(name=member.name)
        elif kind == _FOLDER or (kind in _REGULAR and member.name.endswith(b"/")):  # v7 marks folders by a slash
            self.left_out.add(FOLDER, member.name)
            return None
        elif kind not in _REGULAR:
            self.left_out.add(LINK if kind == _SYMLINK else NOT_REGULAR, member.name)
            return None
        if self._earlier is not None:
            self._earlier[member.name] = member
        return member

    def _refuse_unsupported(self, kind: bytes, name: bytes, values: Values) -> None:
        if kind == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in values):
            cause = f"the member {os.fsdecode(name)!a} is stored as a sparse file, without its holes"
            raise LoaderError("E-UNSUPPORTED", cause, fix="write the tar again without --sparse", path=self.path)
        if kind == _CONTINUED:
            fix = "write the tar again without --multi-volume"
            raise LoaderError("E-UNSUPPORTED", "it is part of a multi-volume archive", fix=fix, path=self.path)

    def _damaged(self, at: int) -> LoaderError:
        if at:
            return LoaderError("E-CORRUPT", f"the header at byte {at:,} is damaged", fix=_WRITE_AGAIN, path=self.path)
        head = self._pread(0, 0, 16)
        for magic, name in _MAGIC.items():
            if head.startswith(magic):
                cause = f"compressed with {name}: the members of a compressed tar cannot be read one by one"
                fix = "decompress it (compressing images again saves almost nothing)"
                return LoaderError("E-FORMAT", cause, fix=fix, path=self.path)
        cause = f"not a tar file: it begins with {head!r}"
        return LoaderError("E-FORMAT", cause, fix="pass only tar files", path=self.path)

    def _cut(self, what: str) -> LoaderError:
        return LoaderError("E-TRUNC", f"the tar is truncated: {what}", fix=_WRITE_AGAIN, path=self.path)


def _is_sound(header: bytes) -> bool:
    """Return whether the checksum matches: the sum of all bytes, with spaces for the checksum itself.

    The low half of Adler-32 is this sum modulo 65521, plus one; it is 50 times faster than sum(). Some old programs
    summed signed bytes.
    """
    try:
        stored = _number(header[148:156])
    except ValueError:
        return False
    difference = stored - 255 - (zlib.adler32(header[156:], zlib.adler32(header[:148])) & 0xFFFF)
    if difference % 65521 == 0:
        return True
    high = sum(byte >= 128 for byte in header[:148] + header[156:])
    return (difference + 256 * high) % 65521 == 0


def _name(header: bytes) -> bytes:
    name = _text(header[:100])
    if header[345] and header[257:263] == b"ustar\0":  # GNU headers store times there
        return _text(header[345:500]) + b"/" + name
    return name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Return a number from octal digits, or from base 256, which GNU tar uses for large ones. Raises ValueError."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _parse_pax(data: bytes) -> Values:
    """Return the records of a pax header: length, key and value of each. Raises ValueError."""
    values: Values = {}
    at = 0
    while at < len(data) and data[at]:
        space = data.index(b" ", at, at + 20)
        end = at + int(data[at:space])
        if not space < end <= len(data) or data[end - 1 : end] != b"\n":
            raise ValueError("a record of another length")
        key, _, value = data[space + 1 : end - 1].partition(b"=")
        values[key] = value
        at = end
    return values
