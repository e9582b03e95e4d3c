"""Columns of values, one per sample, in shared memory or in a saved file; arrays without a Python object per sample."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.system.json_file import ByteText, Count
from penstock.loaders.system.saved_columns import ALIGNMENT, DamagedIndexError, SavedIndex, save_in_memory, save_index
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import Ragged, find_elements


def pack_arrays(arrays: Sequence[npt.NDArray[Any]], alignment: int = ALIGNMENT) -> npt.NDArray[np.uint8]:
    """Return the concatenated bytes of arrays, each starting at a multiple of `alignment`."""
    packed = np.zeros(sum(array.nbytes + -array.nbytes % alignment for array in arrays), np.uint8)
    at = 0
    for array in arrays:
        packed[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        at += array.nbytes + -array.nbytes % alignment
    return packed


def unpack_arrays(
    types: Iterable[tuple[npt.DTypeLike, Sequence[int]]], data: npt.NDArray[np.uint8], alignment: int = ALIGNMENT
) -> list[npt.NDArray[Any]]:
    """Return the arrays packed by pack_arrays, as views of `data`; types: dtype and shape of each.

    Raises ValueError for impossible shapes: a digest proves that bytes are intact, not that they are benign.
    """
    arrays, at = [], 0
    for dtype, shape in types:
        num_bytes = math.prod(shape, start=np.dtype(dtype).itemsize)
        if at + num_bytes > len(data):
            raise ValueError(f"an array {list(shape)} does not fit in their {len(data):,} bytes")
        arrays.append(data[at : at + num_bytes].view(dtype).reshape(shape))
        at += num_bytes + -num_bytes % alignment
    return arrays


class ArrayColumn:
    """An array per sample, all of one shape, in shared memory; pickles as SharedArray does."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._shared = _share(values)

    @property
    def array(self) -> npt.NDArray[Any]:
        """All arrays as one."""
        return self._shared.array

    def take(self, indices: Any) -> npt.NDArray[Any]:
        """Return the arrays of samples `indices`, or of one sample."""
        found: npt.NDArray[Any] = self._shared.array[indices]
        return found

    read = take

    def digest(self) -> bytes:
        """Return a digest of the content."""
        about = repr((self._shared.dtype.str, self._shared.shape)).encode()
        return hashlib.blake2b(about + hashlib.blake2b(self._shared.array.data).digest(), digest_size=16).digest()


class RaggedColumn:
    """A varying number of elements per sample in shared memory; pickles as SharedArray does."""

    def __init__(self, values: Ragged) -> None:
        self._offsets = _share(np.concatenate(([0], np.cumsum(values.lengths))))
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


class BytesColumn(RaggedColumn):
    """A byte string per sample."""

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(ragged_bytes(values))

    def __len__(self) -> int:
        return len(self._offsets.array) - 1

    def read(self, index: int) -> bytes:
        """Return the string of sample `index`."""
        begin, end = self._offsets.array[index : index + 2].tolist()
        return bytes(self._parts[0].array[begin:end])


def take_values(kind: FieldKind, column: RaggedColumn | ArrayColumn, indices: npt.NDArray[np.int64]) -> Any:
    """Return the values of samples `indices` as FieldSource.fields does."""
    values = column.take(indices)
    if kind.rules.encode is None:
        return values
    assert isinstance(values, Ragged)
    return list(map(kind.rules.decode, split_bytes(values)))


def _share(values: npt.NDArray[Any]) -> SharedArray:
    shared = SharedArray.create(values.shape, values.dtype, name="penstock-columns")
    shared.array[...] = values
    return shared


def ragged_bytes(values: Sequence[bytes]) -> Ragged:
    """Return byte strings as rows, uint8."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    return Ragged(lengths, (np.frombuffer(b"".join(values), np.uint8),))


def split_bytes(values: Ragged) -> list[bytes]:
    """Return the byte strings packed by ragged_bytes."""
    lengths, (flat,) = values
    ends, data = np.cumsum(lengths), flat.tobytes()
    return [data[begin:end] for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]


OTHER = "\0"  # begins the names of saved columns that are not labels


class StoredValues(NamedTuple):
    """One value per sample, such as its label.

    Attributes:
        values: int32 [n] of class numbers; float32 [n] or [n, k]; uint8 [n, k / 8], sets of k classes, one bit each; or
            other numbers.
        classes: names of the class numbers, or of the k elements; empty if they have no names.
    """

    values: npt.NDArray[Any]
    classes: tuple[bytes, ...] = ()

    @property
    def are_classes(self) -> bool:
        """Whether the values are class numbers."""
        return self.values.dtype == np.int32

    def serve(self, indices: Any) -> npt.NDArray[Any]:
        """Return the values of samples `indices`: int64 [b], or float32 [b] or [b, k]; for sets, 1 for each member."""
        found: npt.NDArray[Any] = self.values[indices]
        if self.values.dtype == np.uint8:
            return np.unpackbits(found, axis=-1, count=len(self.classes)).astype(np.float32)
        return found.astype(np.int64) if self.are_classes else found

    def take(self, indices: npt.NDArray[np.int64]) -> StoredValues:
        """Return the values of samples `indices`."""
        return self._replace(values=self.values[indices])


@dataclass(frozen=True)
class _Saved:
    name: str
    dtype: str
    shape: list[Count]
    classes: list[ByteText]


@dataclass(frozen=True)
class _Header:
    content: str
    columns: list[_Saved]
    format: int = 2


class SavedColumns(SavedIndex):
    """Mapped arrays of all samples by name, such as labels and sizes.

    Attributes:
        columns: the columns of the file.
        identity: the identity passed to save_columns.
    """

    kinds, header_class = {"values": ("|u1",)}, _Header
    header: _Header

    def __init__(self, path: bytes, verify: bool = True) -> None:
        super().__init__(path, verify)
        saved, data = self.header.columns, self.file.columns["values"]
        try:
            arrays = unpack_arrays([(each.dtype, each.shape) for each in saved], data)
        except (TypeError, ValueError) as error:
            raise DamagedIndexError(f"not an index of this version: {error}") from error
        self.columns: dict[str, StoredValues] = {}
        for each, values in zip(saved, arrays, strict=True):
            classes = tuple(text.encode("utf-8", "surrogateescape") for text in each.classes)
            self.columns[each.name] = StoredValues(values, classes)

    @property
    def labels(self) -> dict[str, StoredValues]:
        """The columns of labels by name."""
        return {name: values for name, values in self.columns.items() if not name.startswith(OTHER)}


def save_columns(columns: Mapping[str, StoredValues], identity: str, name: bytes | None = None) -> SavedColumns:
    """Write columns to a file in the user's cache folder, or to memory without a `name`, and map it."""

    def write(file: BinaryIO) -> None:
        saved = [
            _Saved(each, of.dtype.str, list(of.shape), [text.decode("utf-8", "surrogateescape") for text in classes])
            for each, (of, classes) in columns.items()
        ]
        packed = pack_arrays([values for values, _ in columns.values()])
        SavedColumns.write(file, _Header(identity, saved), {"values": packed})

    return save_in_memory(write, SavedColumns) if name is None else save_index(name, write, SavedColumns)
