"""The native CRC-32 equals zlib's, by folding and by tables."""

from __future__ import annotations

import ctypes
import random
import zlib


def test_crc_is_zlibs(library: ctypes.CDLL) -> None:
    library.pn_crc32.restype = ctypes.c_uint32
    draw = random.Random(1)
    data = draw.randbytes(1 << 20)
    for size in (*range(400), 4095, 65536, (1 << 20) - 17):
        start = draw.randrange(17)  # at every alignment
        for before in (0, draw.getrandbits(32), 0xFFFFFFFF):
            part = data[start : start + size]
            got = library.pn_crc32(part, ctypes.c_size_t(size), ctypes.c_uint32(before))
            assert got == zlib.crc32(part, before), (size, before)
