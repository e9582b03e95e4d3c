"""Writes the frame of a cache file: HDF5's own bytes around a payload that is already in place.

The payload of a cache is written first, from PAYLOAD_OFFSET on, by plain writes. HDF5 then lays out a sparse file with
the same datasets in memory and reports their offsets. The bytes that it wrote outside the payload are copied into the
file, the first PAYLOAD_OFFSET bytes last. Until then the file has no HDF5 signature, so an unfinished file is not an
HDF5 file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.cache.format import About, digest_of
from penstock.loaders.data.cache.hdf5_layout import import_h5py
from penstock.loaders.system.durable_file import write_all
from penstock.pipelines.errors import LoaderError

PAYLOAD_OFFSET = 4096
# In the gap between HDF5's first metadata (462 bytes) and the payload: identifies even a damaged penstock file.
_MARK = b"penstock cache 1"
_MARK_OFFSET = PAYLOAD_OFFSET - len(_MARK)
_ALIGNMENT = PAYLOAD_OFFSET  # for datasets of at least this size: it fixes the offset of the first large one
_METADATA_BLOCK = 2048
_SMALLEST_FRAME = 64 << 10
_COPY_BYTES = 1 << 20
Tables = Mapping[str, npt.NDArray[Any]]


def is_cache_file(path: bytes) -> bool:
    """Return whether penstock built the file, whether or not it was damaged since. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.pread(fd, len(_MARK), _MARK_OFFSET) == _MARK
    finally:
        os.close(fd)


def table_digests(tables: Tables) -> dict[str, str]:
    """Return the hex digest of each table, for `About.digests`."""
    return {name: digest_of(table.tobytes()) for name, table in tables.items()}


def frame_bytes(tables: Tables) -> int:
    """Return the maximum number of bytes that a file needs in addition to its payload."""
    return _SMALLEST_FRAME + sum(table.nbytes + _ALIGNMENT for table in tables.values())


def write_frame(fd: int, tables: Tables, about: About) -> None:
    """Turn `fd`, with its payload (`about.payload_bytes`) at PAYLOAD_OFFSET, into a cache file, synced to disk.

    tables: an array for each of About.tables. Raises OSError; LoaderError E-DEPENDENCY without h5py, E-CACHE if this
    HDF5 library would place the payload elsewhere.
    """
    stored = max(about.payload_bytes, _ALIGNMENT)  # a smaller dataset would not be aligned; the rest is zeros
    end = PAYLOAD_OFFSET + stored
    contents = {**tables, "about": np.frombuffer(about.pack(), np.uint8)}
    # A limit on the file size is hit here and not inside HDF5, which may crash (h5py#914).
    os.truncate(fd, end + frame_bytes(contents))
    frame = os.memfd_create("penstock-frame", os.MFD_CLOEXEC)
    try:
        head, size = _lay_out_around_mark(frame, stored, contents)
        os.truncate(fd, end)  # drops any bytes after the payload
        os.truncate(fd, size)
        for offset in range(end, size, _COPY_BYTES):  # the bytes after the payload
            write_all(fd, os.pread(frame, min(_COPY_BYTES, size - offset), offset), offset)
        os.fsync(fd)
        write_all(fd, head, 0)
        os.fsync(fd)
    finally:
        os.close(frame)


def _lay_out_around_mark(frame: int, payload_bytes: int, contents: Tables) -> tuple[bytes, int]:
    """Lay out a file in `frame`, as _lay_out; return its first bytes with the mark, and its size in bytes.

    HDF5 puts small tables into the gap before the payload. If they reach the mark, all tables go after the payload.
    """
    for fill_gap in (False, True):
        os.truncate(frame, 0)
        size = _lay_out(frame, payload_bytes, contents, fill_gap=fill_gap)
        head = os.pread(frame, PAYLOAD_OFFSET, 0)
        if not any(head[_MARK_OFFSET:]):
            break
    assert not any(head[_MARK_OFFSET:])
    return head[:_MARK_OFFSET] + _MARK, size


def _lay_out(frame: int, payload_bytes: int, contents: Tables, *, fill_gap: bool) -> int:
    """Lay out an HDF5 file in `frame` (an empty memory file), with a hole as payload; return its size in bytes.

    fill_gap: leave no room for tables before the payload.
    """
    h5py = import_h5py()
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_alignment(_ALIGNMENT, _ALIGNMENT)
    access.set_meta_block_size(_METADATA_BLOCK)
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)  # so that equal images give equal files
    with open(frame, "r+b", buffering=0, closefd=False) as memory:
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, memory)
        file = h5py.h5f.create(b"frame", h5py.h5f.ACC_TRUNC, creation, access)
        payload = _create_dataset(h5py, file, "payload", np.dtype(np.uint8), payload_bytes)
        if payload != PAYLOAD_OFFSET:
            file.close()
            version = h5py.version.hdf5_version
            raise LoaderError("E-CACHE", f"HDF5 {version} would place the payload at {payload}, not {PAYLOAD_OFFSET}")
        fillers = _fill_gap(h5py, file) if fill_gap else []
        places = [(_create_dataset(h5py, file, name, data.dtype, len(data)), data) for name, data in contents.items()]
        for name in fillers:  # only now, or their room would be reused
            file.unlink(name.encode())
        file.close()
    for offset, data in places:
        if offset is not None:
            write_all(frame, np.ascontiguousarray(data).view(np.uint8).data, offset)
    return os.fstat(frame).st_size


def _fill_gap(h5py: Any, file: Any) -> list[str]:
    """Fill the room before the payload with datasets; return their names."""
    names: list[str] = []
    for size in (1 << power for power in reversed(range(12))):
        place: int | None = 0
        while place is not None and place < PAYLOAD_OFFSET:
            names.append(f"filler {len(names)}")
            place = _create_dataset(h5py, file, names[-1], np.dtype(np.uint8), size)
    return names


def _create_dataset(h5py: Any, file: Any, name: str, dtype: np.dtype[Any], count: int) -> int | None:
    """Make a contiguous dataset without content; return its offset in the file, None if it is empty."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    kind = h5py.h5t.py_create(dtype, logical=True)
    dataset = h5py.h5d.create(file, name.encode(), kind, h5py.h5s.create_simple((count,)), creation)
    offset: int | None = dataset.get_offset()
    return offset


def hdf5_versions() -> dict[str, str]:
    """Return the versions of h5py and of its HDF5. Raises LoaderError E-DEPENDENCY without h5py."""
    h5py = import_h5py()
    return {"h5py": h5py.version.version, "hdf5": h5py.version.hdf5_version}
