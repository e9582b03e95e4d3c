"""Asks HDF5 once for the offsets of a cache file's datasets.

A file that could make HDF5 read other data is refused. Only HDF5's own metadata is read through HDF5: no filter runs,
no link is followed, no other file is opened. Each check comes before any action that depends on it, so each entry is
checked as a link before it is opened as an object.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from penstock.loaders.data.cache.format import FIELDS, RECORD, DamagedCacheError
from penstock.pipelines.errors import LoaderError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TYPES = {
    "payload": np.dtype("u1"),
    "samples": RECORD,
    "names": np.dtype("u1"),
    "name_ends": np.dtype("<i8"),
    "about": np.dtype("u1"),
    FIELDS: np.dtype("u1"),  # only for a source with fields
}


class Extent(NamedTuple):
    """A dataset's place in the file: offset and length in bytes, and number of items."""

    offset: int
    num_bytes: int
    num_items: int


def import_h5py() -> ModuleType:
    """Import h5py. Raises LoaderError E-DEPENDENCY with the package to install."""
    try:
        import h5py
    except ImportError as error:
        raise LoaderError("E-DEPENDENCY", f"the HDF5 cache needs h5py ({error})", fix="pip install h5py") from error
    return h5py  # type: ignore[no-any-return]


def read_layout(fd: int) -> dict[str, Extent]:
    """Return name -> place of each dataset of the cache file open as `fd`.

    Raises DamagedCacheError for anything but exactly the datasets of a cache, stored contiguously and without filters
    inside this file; LoaderError E-DEPENDENCY.
    """
    h5py = import_h5py()
    if os.pread(fd, len(SIGNATURE), 0) != SIGNATURE:
        raise DamagedCacheError("no HDF5 signature: not a cache, or an unfinished one")
    size = os.fstat(fd).st_size
    try:
        # By descriptor: HDF5 would look up the name again, and another file may have taken it meanwhile.
        with open(fd, "rb", buffering=0, closefd=False) as raw, h5py.File(raw, "r") as file:
            names = [name for name in _TYPES if name != FIELDS or FIELDS in file]
            if len(file) != len(names):
                raise DamagedCacheError(f"{len(file)} entries where a cache has {len(names)}")
            return {name: _find_extent(h5py, file, name, size) for name in names}
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, DamagedCacheError):
            raise
        raise DamagedCacheError(f"HDF5 cannot read it: {error}") from error


def _find_extent(h5py: ModuleType, file: Any, name: str, file_bytes: int) -> Extent:
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise DamagedCacheError(f"{name} is missing or a link")
    if h5py.h5o.get_info(file.id, name.encode()).type != h5py.h5o.TYPE_DATASET:
        raise DamagedCacheError(f"{name} is not a dataset")
    dataset = file[name]
    made = dataset.id.get_create_plist()
    if made.get_layout() != h5py.h5d.CONTIGUOUS or made.get_nfilters() or made.get_external_count():
        raise DamagedCacheError(f"{name} is not stored as one run of bytes in this file")
    if dataset.dtype != _TYPES[name] or dataset.ndim != 1:
        raise DamagedCacheError(f"{name} has the type {dataset.dtype} in {dataset.ndim} dimensions")
    count = int(dataset.shape[0])
    num_bytes, offset = count * _TYPES[name].itemsize, dataset.id.get_offset()
    if count == 0:
        return Extent(0, 0, 0)
    if offset is None or offset < 0 or offset + num_bytes > file_bytes:
        raise DamagedCacheError(f"{name} does not lie within the file's {file_bytes:,} bytes")
    return Extent(int(offset), num_bytes, count)
