"""Opens one cache file, checks it, and reads its tables and payload."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.cache.format import (
    DIGEST_BYTES,
    FIELDS,
    FILE,
    PIXELS,
    RECORD,
    STRIP,
    STRIPS,
    About,
    DamagedCacheError,
)
from penstock.loaders.data.cache.hdf5_layout import Extent, read_layout
from penstock.loaders.data.fields.packed_fields import unpack_fields
from penstock.loaders.system.file_read import read_error
from penstock.loaders.system.retries import with_retries
from penstock.pipelines.errors import LoaderError

_CHUNK_BYTES = 1 << 20
_MAX_ABOUT_BYTES = 64 << 20
_CHECKED_ROWS = 65536
_SHORTER = "the file has become shorter since it was opened"
_NO_FILE = "check the path, or build it: penstock cache build SOURCE CACHE"


class CacheFile:
    """A cache file. Opening checks owner, structure and digests; later the file is identified by inode, size and time.

    `any_owner` accepts files that neither this user nor root owns, or that others may write. Any thread may read.
    Pickles as its name and identity: another process opens it again and refuses a file that replaced it.

    Raises LoaderError: E-CACHE for a file that is not a whole cache of this version, E-ACCESS, E-MISSING, E-READ.
    """

    def __init__(self, path: bytes, *, any_owner: bool = False) -> None:
        self.path = os.path.abspath(path)
        self._prepare()
        fd = self._fd()
        with self._damage_as_error():
            status = os.fstat(fd)
            _check_owner(status, self.path, any_owner)
            layout = read_layout(fd)
            self.about = _read_about(fd, layout["about"])
            self._identity = _identify(status)
            self._payload, self._names, self._name_ends = (layout[n] for n in ("payload", "names", "name_ends"))
            self._samples = layout["samples"]
            self._fields = layout.get(FIELDS)
            n, num_records = self.about.samples, self.about.samples * (1 + len(self.about.pictures))
            if self._samples.num_items != num_records or self._name_ends.num_items != n or n == 0:
                found = f"{self._samples.num_items} and {self._name_ends.num_items}"
                raise DamagedCacheError(f"its tables have {found} rows, not {num_records} and {n}")
            if self._payload.num_bytes < self.about.payload_bytes:
                raise DamagedCacheError("the payload is shorter than declared")
            if (self._fields is not None) != bool(self.about.fields):
                raise DamagedCacheError(f"it declares {len(self.about.fields)} fields, but has {len(layout)} entries")
            for table in self.about.tables:
                if self._compute_digest(layout[table]) != self.about.digests.get(table):
                    raise DamagedCacheError(f"the digest of the table {table} differs")

    def _prepare(self) -> None:
        self._descriptor, self._lock = -1, threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_descriptor", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def _fd(self) -> int:
        return self._descriptor if self._descriptor >= 0 else self._open()

    def _open(self) -> int:
        with self._lock:
            if self._descriptor < 0:
                try:
                    fd = with_retries(lambda: os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
                except OSError as error:
                    found = read_error(error, self.path)
                    if found.code == "E-MISSING":
                        raise LoaderError("E-MISSING", found.cause, fix=_NO_FILE, path=self.path) from error
                    raise found from error
                if "_identity" in self.__dict__ and _identify(os.fstat(fd)) != self._identity:
                    os.close(fd)
                    cause = "the cache was replaced since this loader opened it"
                    raise LoaderError("E-STALE", cause, fix="create the loader again", path=self.path)
                weakref.finalize(self, os.close, fd).atexit = False
                self._descriptor = fd
            return self._descriptor

    def read_fields(self) -> dict[str, Any]:
        """Return the values of the fields by name, except masks. Raises LoaderError E-CACHE, E-READ."""
        if self._fields is None:
            return {}
        with self._damage_as_error():
            data = np.empty(self._fields.num_bytes, np.uint8)
            self._fill(data.data, self._fields.offset, "the file ends inside its fields")
            try:
                return unpack_fields(self.about.fields, data, self.about.samples)
            except ValueError as error:
                raise DamagedCacheError(f"its fields: {error}") from error

    def load_records(self, out: npt.NDArray[np.void], first: int = 0) -> None:
        """Fill `out` (RECORD [n]) with records from `first` on, and check them. Raises LoaderError E-CACHE."""
        self._fill(
            out.data.cast("B"), self._samples.offset + first * RECORD.itemsize, "the file ends inside its tables"
        )
        with self._damage_as_error():
            for start in range(0, len(out), _CHECKED_ROWS):
                _check_records(out[start : start + _CHECKED_ROWS], self.about.payload_bytes, len(self.about.classes))

    def _fill(self, view: memoryview, offset: int, fault: str) -> None:
        """Fill `view` with the file's bytes from `offset` on; `fault` is the error text if the file ends early."""
        done = 0
        while done < len(view):
            part = view[done : done + _CHUNK_BYTES]
            got = self._retry(functools.partial(os.preadv, self._fd(), [part], offset + done))
            if not got:
                raise self.damaged(fault)
            done += got

    @property
    def payload(self) -> tuple[int, int]:
        """The descriptor of the file, and the offset of the payload. Raises LoaderError E-STALE, E-MISSING."""
        return self._fd(), self._payload.offset

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Read bytes of the payload. Raises LoaderError E-CACHE if the file has become shorter, E-READ."""
        at = self._payload.offset + offset
        data: bytes = self._retry(functools.partial(os.pread, self._fd(), num_bytes, at))
        while len(data) < num_bytes:
            more = os.pread(self._fd(), num_bytes - len(data), at + len(data))
            if not more:
                raise self.damaged(_SHORTER)
            data += more
        return data

    def read_into(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill `out` (uint8 [bytes]) from the payload; raises as read()."""
        self._fill(out.data, self._payload.offset + offset, _SHORTER)

    def _retry(self, call: Any) -> Any:
        try:
            return with_retries(call)
        except OSError as error:
            raise read_error(error, self.path) from error

    def name(self, index: int) -> bytes:
        """Return the name of image `index` of this file in the source; b"" if it can no longer be read."""
        first = max(0, index - 1)
        ends = self._read_table(self._name_ends, 8 * first, 8 * (index + 1 - first))
        if len(ends) != 8 * (index + 1 - first):
            return b""
        *before, end = np.frombuffer(ends, "<i8").tolist()
        start = before[0] if before else 0
        return self._read_table(self._names, start, end - start) if 0 <= start <= end <= self._names.num_bytes else b""

    def _read_table(self, extent: Extent, start: int, num_bytes: int) -> bytes:
        with contextlib.suppress(OSError, LoaderError):
            return os.pread(self._fd(), num_bytes, extent.offset + start)
        return b""

    def _compute_digest(self, extent: Extent) -> str:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for start in range(0, extent.num_bytes, _CHUNK_BYTES):
            digest.update(os.pread(self._fd(), min(_CHUNK_BYTES, extent.num_bytes - start), extent.offset + start))
        return digest.hexdigest()

    def damaged(self, cause: str) -> LoaderError:
        """Return an error that reports damage of this file."""
        return LoaderError("E-CACHE", cause, path=self.path)

    @contextlib.contextmanager
    def _damage_as_error(self) -> Iterator[None]:
        try:
            yield
        except DamagedCacheError as error:
            raise self.damaged(str(error)) from error
        except OSError as error:
            raise read_error(error, self.path) from error


def _identify(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_owner(status: os.stat_result, path: bytes, any_owner: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DamagedCacheError("not a regular file")
    if any_owner:
        return
    cure = "if you trust it, copy it and use the copy, or call create_loader(open_source(path, any_owner=True))"
    if status.st_uid not in (os.geteuid(), 0):
        cause = f"it belongs to another user (uid {status.st_uid})"
        raise LoaderError("E-CACHE", cause, fix=cure, path=path)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "every user" if status.st_mode & stat.S_IWOTH else f"its group (gid {status.st_gid})"
        raise LoaderError("E-CACHE", f"{who} may write to it", fix=f"chmod go-w; or, {cure}", path=path)


def _read_about(fd: int, extent: Extent) -> About:
    if not DIGEST_BYTES < extent.num_bytes <= _MAX_ABOUT_BYTES:
        raise DamagedCacheError(f"its metadata has {extent.num_bytes:,} bytes")
    about = About.unpack(os.pread(fd, extent.num_bytes, extent.offset))
    try:
        about.coded  # noqa: B018 - raises for impossible settings
    except (TypeError, ValueError) as error:
        raise DamagedCacheError(f"impossible settings: {error}") from error
    return about


def _check_records(records: npt.NDArray[np.void], payload_bytes: int, num_classes: int) -> None:
    """Refuse records that could misdirect a read: a digest proves that a table is intact, not that it is benign."""
    offset, length, head = (records[name].astype(np.int64) for name in ("offset", "length", "head"))
    width, height, kind = (records[name].astype(np.int64) for name in ("width", "height", "kind"))
    strips, pixels = kind == STRIPS, kind == PIXELS
    rows = np.where(strips, -(-height // np.maximum(records["mcu_height"].astype(np.int64), 1)), height)
    num_strips = -(-rows // np.maximum(records["strip_rows"].astype(np.int64), 1))
    # Sums and products of three fields may overflow int64: check bounds first, or in a form that cannot overflow.
    sound = (offset >= 0) & (offset <= payload_bytes - length) & (head <= length) & (kind <= PIXELS)
    sound &= (records["label"] >= 0) & (records["label"] < num_classes)
    sound &= (kind == FILE) | ((width > 0) & (height > 0) & (records["strip_rows"] > 0))
    sound &= (records["orientation"] >= 1) & (records["orientation"] <= 8)
    fits = width <= length // np.maximum(3 * height, 1)
    sound &= ~pixels | ((head == 4 * num_strips) & fits & (length == head + 3 * width * height))
    sound &= ~strips | (
        (records["mcu_width"] > 0)
        & (records["mcu_height"] > 0)
        & (records["segment_mcus"] > 0)
        & (head > STRIP.itemsize * num_strips + records["height_offset"].astype(np.int64) + 4)
        & (width <= 65535)
        & (height <= 65535)
    )
    if not sound.all():
        raise DamagedCacheError(f"record {int(np.flatnonzero(~sound)[0])} of {records.dtype.itemsize} bytes is invalid")


assert RECORD.itemsize == 42
