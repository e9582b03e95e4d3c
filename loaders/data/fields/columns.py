"""Columns of fields in shared memory: no Python object per sample."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import Ragged, find_elements


class RaggedColumn:
    """Hold so many elements per sample in shared memory; pickles as SharedArray does."""

    def __init__(self, values: Ragged) -> None:
        offsets = np.concatenate(([0], np.cumsum(values.lengths)))
        self._offsets = _share(offsets)
        self._parts = tuple(map(_share, values.parts))

    def take(self, indices: npt.NDArray[np.int64]) -> Ragged:
        """Return the elements of samples `indices`."""
        starts = self._offsets.array[indices]
        lengths = self._offsets.array[indices + 1] - starts
        elements = find_elements(starts, lengths)
        return Ragged(lengths, tuple(part.array[elements] for part in self._parts))

    def digest(self) -> bytes:
        """Return a digest of the content."""
        found = hashlib.blake2b(digest_size=16)
        for part in (self._offsets, *self._parts):
            found.update(repr((part.dtype.str, part.shape)).encode())
            found.update(part.array.data)
        return found.digest()


class TextFiles(RaggedColumn):
    """Hold what was read of a text file for each sample: `folder` has one of the sample's name."""

    def __init__(self, values: Ragged, folder: str) -> None:
        super().__init__(values)
        self._folder = folder

    def path(self, name: bytes) -> bytes:
        """Return the path of the text file of the sample called `name`."""
        name = os.path.basename(name) if os.path.isabs(name) else name
        return os.path.join(os.fsencode(self._folder), os.path.splitext(name)[0] + b".txt")


class BytesColumn(RaggedColumn):
    """Hold one string of bytes per sample in shared memory."""

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(ragged_bytes(values))

    def take_bytes(self, indices: npt.NDArray[np.int64]) -> list[bytes]:
        """Return the strings of samples `indices`."""
        return split_bytes(self.take(indices))


class ArrayColumn:
    """Hold an array per sample, all of one shape, in shared memory."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._shared = _share(values)

    def take(self, indices: Any) -> npt.NDArray[Any]:
        """Return the arrays of samples `indices`, or that of one."""
        found: npt.NDArray[Any] = self._shared.array[indices]
        return found

    def digest(self) -> bytes:
        """Return a digest of the content."""
        about = repr((self._shared.dtype.str, self._shared.shape)).encode()
        return hashlib.blake2b(about + hashlib.blake2b(self._shared.array.data).digest(), digest_size=16).digest()


def ragged_bytes(values: Sequence[bytes]) -> Ragged:
    """Return strings of bytes as rows, uint8."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    return Ragged(lengths, (np.frombuffer(b"".join(values), np.uint8),))


def split_bytes(values: Ragged) -> list[bytes]:
    """Return the strings that ragged_bytes took."""
    lengths, (flat,) = values
    ends, data = np.cumsum(lengths), flat.tobytes()
    return [data[begin:end] for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]


def take_values(kind: FieldKind, column: RaggedColumn | ArrayColumn, indices: npt.NDArray[np.int64]) -> Any:
    """Return the values of samples `indices` as FieldSource.fields does."""
    values = column.take(indices)
    if kind.kind not in ENCODED:
        return values
    assert isinstance(values, Ragged)
    decode = ENCODED[kind.kind][1]
    return [decode(value) for value in split_bytes(values)]


# Kinds that are kept as bytes: how they are written and read.
ENCODED: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "text": (
        lambda text: text.encode("utf-8", "surrogateescape"),
        lambda data: data.decode("utf-8", "surrogateescape"),
    ),
    "bytes": (bytes, bytes),
    "json": (lambda value: json.dumps(value).encode(), json.loads),
}


def _share(values: npt.NDArray[Any]) -> SharedArray:
    shared = SharedArray.create(values.shape, values.dtype, name="penstock-fields")
    shared.array[...] = values
    return shared
