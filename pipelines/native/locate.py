"""Locates the samples of a batch with the native library: in the files of a folder's index, or in a cache file."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipelines.native.library import native_library
from penstock.pipelines.native.rows import ROW, Rows

Indices = npt.NDArray[np.int64]
_COLUMNS = ("folder_offsets", "container_offsets", "container_folders", "container_sizes", "container_versions")


class _Column(ctypes.Structure):
    """Mirror pn_column of locate.h."""

    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_int64), ("bytes", ctypes.c_int64))


class _Files(ctypes.Structure):
    """Mirror pn_files of locate.h."""

    _fields_ = (
        *((name, _Column) for name in _COLUMNS),
        ("folder_names_bytes", ctypes.c_int64),
        ("container_names_bytes", ctypes.c_int64),
    )


class FileTables:
    """The columns of a folder's index, under the same names, for the native library."""

    def __init__(self, columns: Mapping[str, npt.NDArray[np.generic]]) -> None:
        self._columns = columns  # keeps their memory alive
        used = ((name, columns[name]) for name in _COLUMNS)
        about = {name: _Column(array.ctypes.data, len(array), array.itemsize) for name, array in used}
        names = {f"{name}_bytes": len(columns[name]) for name in ("folder_names", "container_names")}
        self._files = _Files(**about, **names)

    def locate(self, indices: Indices, rows: Rows, max_bytes: int) -> bool:
        """Fill `rows` (ROW [n], zeroed) for files `indices`; False if the library cannot: then numpy must do it."""
        return _locate("pn_locate_files", (ctypes.byref(self._files), max_bytes), indices, rows)


def locate_stored(records: int, num_records: int, payload: tuple[int, int], indices: Indices, rows: Rows) -> bool:
    """Fill `rows` (ROW [n], zeroed) for `indices` of a cache file; False if the library cannot.

    records: address of RECORD [num_records]; payload: the file's descriptor, and where the payload begins in it.
    """
    return _locate("pn_locate_stored", (records, num_records, *payload), indices, rows)


def _locate(function: str, tables: tuple[Any, ...], indices: Indices, rows: Rows) -> bool:
    library = native_library()
    if library is None:
        return False
    assert (rows.dtype, len(rows)) == (ROW, len(indices))
    assert rows.flags.c_contiguous
    which = np.ascontiguousarray(indices, np.int64)
    return bool(getattr(library, function)(*tables, which.ctypes.data, rows.ctypes.data, len(rows)))
