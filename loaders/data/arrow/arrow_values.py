"""Locates the images of a column in memory without copying them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.arrow.arrow_columns import holds_paths
from penstock.loaders.data.arrow.arrow_package import import_pyarrow


class Values(NamedTuple):
    """The values of one chunk of a column.

    Attributes:
        buffer: the pyarrow buffer with the bytes; None if there are none.
        starts: offset of each row's bytes in the buffer, int64 [n].
        sizes: number of bytes of each row, int64 [n].
        present: whether each row has bytes, bool [n].
        paths: a pyarrow array of file names, one per row or null; None if the column has none.
    """

    buffer: Any
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]
    paths: Any

    def bytes_of(self, row: int) -> memoryview:
        """Return the bytes of a row without copying them."""
        start = int(self.starts[row])
        return memoryview(self.buffer or b"")[start : start + int(self.sizes[row])]

    def path_of(self, row: int) -> bytes | None:
        """Return the name of a row's file, if it has one."""
        name = None if self.paths is None else self.paths[row].as_py()
        return name.encode("utf-8", "surrogateescape") if name else None


def locate_values(column: Any) -> Values:
    """Locate the values of a pyarrow array of bytes, of structs of bytes and path, or of paths.

    Raises pyarrow.ArrowInvalid for an inconsistent array.
    """
    column = getattr(column, "storage", column)
    column.validate()
    kind, types = column.type, import_pyarrow().types
    if holds_paths(kind):
        column.validate(full=True)
        nothing = np.zeros(len(column), np.int64)
        return Values(None, nothing, nothing, np.zeros(len(column), bool), column)
    if not types.is_struct(kind):
        return _locate_bytes(column)
    place = kind.get_field_index("path")
    paths = column.field(place) if place >= 0 and holds_paths(kind.field(place).type) else None
    if paths is not None:
        paths.validate(full=True)  # pyarrow does not check damaged offsets
    values = _locate_bytes(column.field(kind.get_field_index("bytes")))
    there = _are_valid(column)
    if paths is not None and not there.all():
        paths = import_pyarrow().compute.if_else(there, paths, None)
    return values._replace(present=values.present & there, paths=paths)


def _locate_bytes(column: Any) -> Values:
    pyarrow = import_pyarrow()
    offset_type = "<i8" if pyarrow.types.is_large_binary(column.type) else "<i4"
    _, offsets, data = column.buffers()
    ends = np.zeros(1, np.int64)
    if len(column):
        first = column.offset * np.dtype(offset_type).itemsize
        ends = np.frombuffer(offsets, offset_type, len(column) + 1, first).astype(np.int64)
    sizes = np.diff(ends)
    if (sizes < 0).any() or ends[0] < 0 or ends[-1] > (0 if data is None else data.size):
        raise pyarrow.ArrowInvalid("offsets of a column point outside its data")
    return Values(data, ends[:-1], sizes, _are_valid(column), None)


def _are_valid(column: Any) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid
