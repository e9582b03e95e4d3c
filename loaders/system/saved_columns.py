"""Saved indexes: numpy columns in one file in the user's cache folder or in memory, mapped by every process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any, BinaryIO, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from penstock.loaders.system.durable_file import replace_file
from penstock.loaders.system.file_read import open_regular
from penstock.loaders.system.json_file import decode_json
from penstock.pipelines.errors import LoaderError

DIGEST_BYTES = 32
ALIGNMENT = 64  # of the arrays in the file: numpy and memoryview refuse other alignments, or are slower
_CHUNK_BYTES = 1 << 20
Columns = dict[str, npt.NDArray[Any]]
Kinds = Mapping[str, tuple[str, ...]]  # name of a column -> allowed types, in the order of the file


class DamagedIndexError(ValueError):
    """A file is not a complete index of this version, and must be made again."""


class ColumnFile:
    """The mapped columns of a file; all processes on a machine use the same pages.

    Attributes:
        path: name of the file.
        fd: descriptor of the file, open as long as this object lives.
        header: the header passed to write_columns, as bytes.
        columns: name -> array of one dimension, read-only.
    """

    def __init__(self, path: bytes, kinds: Kinds, *, verify: bool = True) -> None:
        """Map the file at `path`; `verify` first reads it and compares its digest. Raises DamagedIndexError."""
        self.path = path
        try:
            self.fd = open_regular(path)
            weakref.finalize(self, os.close, self.fd).atexit = False
            with open(self.fd, "rb", closefd=False) as file:
                if verify:
                    _verify(file)
                self.header, self.columns = _map_arrays(file, kinds)
        except OSError as error:
            raise DamagedIndexError(str(error)) from error

    @property
    def paths(self) -> tuple[bytes, bytes]:
        """The file's name, and a path that opens the same file for this user even if it was replaced."""
        return self.path, b"/proc/%d/fd/%d" % (os.getpid(), self.fd)


class _Digesting:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.blake2b(digest_size=DIGEST_BYTES)

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def finish(self) -> None:
        self._file.write(self._digest.digest())
        self._file.flush()


def write_columns(file: BinaryIO, header: bytes, columns: Mapping[str, npt.NDArray[Any]], kinds: Kinds) -> None:
    """Write the header, the columns in `kinds`, as numpy.save does, and a digest of everything. Raises OSError."""
    digesting = _Digesting(file)
    for array in (np.frombuffer(header, np.uint8), *(columns[name] for name in kinds)):
        np.save(digesting, array, allow_pickle=False)
        digesting.write(bytes(-file.tell() % ALIGNMENT))
    digesting.finish()


def narrowest(values: npt.NDArray[np.generic], *kinds: type) -> npt.NDArray[np.generic]:
    """Return `values` (not negative) in the first of the types `kinds` that can represent all of them."""
    largest = int(values.max()) if len(values) else 0
    return values.astype(next(kind for kind in kinds if largest <= np.iinfo(kind).max))


def join_names(names: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """Return the concatenated names (uint8), and where each name begins and the last one ends (uint64 [n + 1])."""
    offsets = np.zeros(len(names) + 1, np.uint64)
    np.cumsum([len(name) for name in names], out=offsets[1:])
    return np.frombuffer(b"".join(names), np.uint8), offsets


def split_names(blob: npt.NDArray[np.generic], offsets: npt.NDArray[np.generic]) -> tuple[bytes, ...]:
    """Return the names that join_names joined."""
    text, ends = blob.tobytes(), offsets.tolist()
    return tuple(text[a:b] for a, b in pairwise(ends))


def _map_arrays(file: BinaryIO, kinds: Kinds) -> tuple[bytes, Columns]:
    file.seek(0)
    try:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        header = _next_array(file, mapping, ("|u1",)).tobytes()
        columns = {name: _next_array(file, mapping, types) for name, types in kinds.items()}
    except ValueError as error:
        raise DamagedIndexError(f"not an index of this version: {error}") from error
    if file.tell() + DIGEST_BYTES != len(mapping):
        raise DamagedIndexError("not an index of this version")
    return header, columns


def _next_array(file: BinaryIO, mapping: mmap.mmap, types: tuple[str, ...]) -> npt.NDArray[np.generic]:
    """Map the array at the position of `file`, and move past it. Raises ValueError for types other than `types`."""
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    if dtype.str not in types or len(shape) != 1:
        raise ValueError(f"unexpected array of {dtype.str} {shape}")
    array = np.frombuffer(mapping, dtype, shape[0], file.tell()) if shape[0] else np.empty(0, dtype)
    end = file.tell() + array.nbytes
    file.seek(end + -end % ALIGNMENT)
    return array


def _verify(file: BinaryIO) -> None:
    """Compare the digest by reading the file, because mapped pages would count as this process's memory."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    left = os.fstat(file.fileno()).st_size - DIGEST_BYTES
    while left > 0:
        chunk = file.read(min(left, _CHUNK_BYTES))
        digest.update(chunk)
        left -= len(chunk) or left  # the file is being truncated
    if file.read() != digest.digest():
        raise DamagedIndexError("the digest differs")


Opened = TypeVar("Opened")
Open = Callable[[bytes, bool], Opened]  # (path, whether to verify the digest) -> an index; raises DamagedIndexError
Write = Callable[[BinaryIO], None]


class SavedIndex:
    """The mapped columns and the header of an index; all processes on a machine use the same pages.

    It is pickled as the name and digest of its file, which each worker maps.

    Attributes:
        kinds: names of the columns and their types; columns of a table with names have a common prefix and equal
            lengths.
        optional: columns that may be empty.
        header_class: dataclass of the header, with the version of the file as `format`.
        file: the mapped file.
        header: the header, stored in the file as JSON.
    """

    kinds: ClassVar[Kinds]
    optional: ClassVar[Collection[str]] = ()
    header_class: ClassVar[type[Any]]
    header: Any

    def __init__(self, path: bytes, verify: bool = True) -> None:
        """Map the index at `path`; `verify` first reads it and compares its digest (40 ms per million files).

        Raises DamagedIndexError, also for a missing file.
        """
        self.file = ColumnFile(path, self.kinds, verify=verify)
        try:
            self.header = decode_json(self.file.header, self.header_class)
        except ValueError as error:
            raise DamagedIndexError(f"not an index of this version: {error}") from error
        if self.header.format != self.header_class.format:
            raise DamagedIndexError("not an index of this version")
        for name, column in self.file.columns.items():
            offsets = self.file.columns.get(f"{name.partition('_')[0]}_offsets")
            is_absent = name in self.optional and not len(column)
            if offsets is None or is_absent or name.endswith(("_names", "_offsets")):
                continue
            if len(column) != len(offsets) - 1:
                raise DamagedIndexError("columns of one table differ in length")

    @classmethod
    def write(cls, file: BinaryIO, header: Any, columns: Columns) -> None:
        """Write an index. Raises OSError."""
        write_columns(file, json.dumps(asdict(header)).encode("ascii"), columns, cls.kinds)

    @property
    def is_saved(self) -> bool:
        """Whether the file is in a folder instead of in memory."""
        return not self.file.path.startswith(b"/proc/")

    @property
    def identity(self) -> str:
        """Hex digest that identifies this index in another process."""
        return str(self.header.content)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (type(self), self.file.paths, self.identity)


def cache_folder() -> bytes | None:
    """Return `$XDG_CACHE_HOME/penstock` or `~/.cache/penstock`, created if missing; None if it cannot be trusted.

    A folder of another owner is refused, because an index decides which files are read.
    """
    base = os.environb.get(b"XDG_CACHE_HOME", b"")
    if not os.path.isabs(base):  # the XDG specification requires ignoring a relative path
        base = os.path.join(os.path.expanduser(b"~"), b".cache")
    if not os.path.isabs(base):
        return None
    folder = os.path.join(base, b"penstock")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid != os.geteuid():
            return None
        if status.st_mode & 0o077:
            os.chmod(folder, 0o700)
    except OSError:
        return None
    return folder


def load_saved(name: bytes, open_index: Open[Opened], *, verify: bool = True) -> Opened | None:
    """Return the saved index `name`; None if it is missing, incomplete or another user's.

    verify: whether to read it and compare its digest, unless another process has just done so.
    """
    folder = cache_folder()
    if folder is None:
        return None
    path = os.path.join(folder, name)
    try:
        return open_index(path, verify) if os.stat(path).st_uid == os.geteuid() else None
    except (OSError, DamagedIndexError):
        return None


def save_index(name: bytes, write: Write, open_index: Open[Opened]) -> Opened:
    """Save an index with `write` and return it: in the cache folder, or in memory if that is not writable."""
    folder = cache_folder()
    if folder is not None:
        with contextlib.suppress(OSError, DamagedIndexError):
            path = os.path.join(folder, name)
            # Leftovers of all data sets, because some are never indexed again.
            replace_file(path, write, leftovers=rb"\w+\.index")
            return open_index(path, False)
    return save_in_memory(write, open_index)


def save_in_memory(write: Write, open_index: Open[Opened]) -> Opened:
    """Write an index to a memfd and return it. Workers open it through /proc; it disappears with this process."""
    try:
        with open(os.memfd_create("penstock-index", os.MFD_CLOEXEC), "wb") as file:
            write(file)
            return open_index(b"/proc/self/fd/%d" % file.fileno(), False)
    except (OSError, DamagedIndexError) as error:
        raise LoaderError("E-NOSPC", f"the index of the data cannot be stored: {error}") from error


def drop_index(file: ColumnFile) -> None:
    """Remove a saved index that is no longer valid, so that it is made again when the data is opened next."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(file.path), os.fstat(file.fd)):  # a newer index with this name may be valid
            os.unlink(file.path)


def _reopen(kind: type[SavedIndex], paths: tuple[bytes, ...], identity: str) -> SavedIndex:
    """Return the index in another process, from the first of `paths` that matches. Raises LoaderError E-STALE.

    paths: the index's name, and the first process's descriptor of it in case it was replaced.
    """
    for path in paths:
        with contextlib.suppress(DamagedIndexError):
            index = kind(path, False)
            if index.identity == identity:
                return index
    cause = "the index of the data was removed, or another process replaced it because files have changed"
    raise LoaderError("E-STALE", cause, fix="create the loader again")
