"""Keeps numpy columns and a header in one file, which every process maps read-only: the form of all saved indexes."""

from __future__ import annotations

import hashlib
import mmap
import os
import weakref
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from penstock.loaders.system.file_read import open_regular

DIGEST_BYTES = 32
ALIGNMENT = 64  # of the arrays in the file: numpy and memoryview refuse or slow down others
_CHUNK_BYTES = 1 << 20
Columns = dict[str, npt.NDArray[Any]]
Kinds = Mapping[str, tuple[str, ...]]  # name of a column -> types it may have, in the order of the file


class DamagedIndexError(ValueError):
    """Raised for a file that is not a complete index of this version: it must be made again."""


class ColumnFile:
    """Map the columns of a file; all processes on a machine use the same pages.

    Attributes:
        path: name of the file.
        fd: descriptor of the file, open as long as this object lives.
        header: what write_columns was given, as bytes.
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
        """Its name, and a path by which a process of this user opens this very file even if it was replaced since."""
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
    """Write the header, the columns that `kinds` names, as numpy.save does, and a digest of all. Raises OSError."""
    digesting = _Digesting(file)
    for array in (np.frombuffer(header, np.uint8), *(columns[name] for name in kinds)):
        np.save(digesting, array, allow_pickle=False)
        digesting.write(bytes(-file.tell() % ALIGNMENT))
    digesting.finish()


def narrowest(values: npt.NDArray[np.generic], *kinds: type) -> npt.NDArray[np.generic]:
    """Return `values` (not negative) in the first of the types `kinds` that holds them all."""
    largest = int(values.max()) if len(values) else 0
    return values.astype(next(kind for kind in kinds if largest <= np.iinfo(kind).max))


def join_names(names: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """Return names one after another (uint8), and where each begins and the last ends (uint64 [n + 1])."""
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
    """Map the array at the position of `file`, and move behind it. Raises ValueError for types other than `types`."""
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    if dtype.str not in types or len(shape) != 1:
        raise ValueError(f"unexpected array of {dtype.str} {shape}")
    array = np.frombuffer(mapping, dtype, shape[0], file.tell()) if shape[0] else np.empty(0, dtype)
    end = file.tell() + array.nbytes
    file.seek(end + -end % ALIGNMENT)
    return array


def _verify(file: BinaryIO) -> None:
    """Compare the digest, by reads: pages looked at through the mapping would count as this process's memory."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    left = os.fstat(file.fileno()).st_size - DIGEST_BYTES
    while left > 0:
        chunk = file.read(min(left, _CHUNK_BYTES))
        digest.update(chunk)
        left -= len(chunk) or left  # a file that is being cut off
    if file.read() != digest.digest():
        raise DamagedIndexError("the digest differs")
