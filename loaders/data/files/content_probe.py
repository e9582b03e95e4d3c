"""Identifies data by some of its bytes, if names and sizes do not identify its samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

PROBE_BYTES = 64
NUM_PROBES = 64  # one round of requests for a remote data set
WHOLE_BYTES = 64 << 10  # data up to this size is read whole
_THREADS = 32  # for network storage
# A function that reads bytes of a file or object: (path or URL, offset, number of bytes) -> bytes.
Read = Callable[[bytes, int, int], bytes]


def read_file(name: bytes, start: int, count: int) -> bytes:
    """Return bytes of a file. Raises OSError."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, count, start)
    finally:
        os.close(fd)


def read_if_there(name: bytes, start: int, count: int) -> bytes:
    """Return bytes of a file; none if it cannot be read: reading its samples will report that."""
    try:
        return read_file(name, start, count)
    except OSError:
        return b""


def probe_ranges(
    names: Sequence[bytes], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], read: Read = read_if_there
) -> bytes:
    """Return a digest of ranges in order: of all their bytes if these are few, else of NUM_PROBES spread evenly.

    With at most NUM_PROBES ranges, the middle of each is read too. So other data, or data in another order, has another
    digest; with many more ranges, an exchange of two may be missed.

    names, starts, sizes: file, offset and bytes of each range. read: reads bytes of a file. Raises as `read` does.
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    if total <= WHOLE_BYTES:
        wanted = [(names[n], int(starts[n]), int(sizes[n])) for n in range(len(starts)) if sizes[n]]
    else:
        middles = (ends - sizes + sizes // 2)[sizes > 0] if len(sizes) <= NUM_PROBES else ends[:0]
        places = np.union1d(middles, np.linspace(0, total - 1, NUM_PROBES - len(middles)).astype(np.int64))
        of_range = np.searchsorted(ends, places, "right")
        inside = places - (ends - sizes)[of_range]
        counts = np.minimum(PROBE_BYTES, sizes[of_range] - inside)
        wanted = [
            (names[n], int(starts[n] + at), int(count))
            for n, at, count in zip(of_range.tolist(), inside.tolist(), counts.tolist(), strict=True)
        ]
    digest = hashlib.blake2b(b"penstock probe 1", digest_size=16)
    with ThreadPoolExecutor(_THREADS) as pool:
        for data in pool.map(lambda one: read(*one), wanted):
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
