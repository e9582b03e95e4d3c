"""Finds the device code of each architecture in the fat binaries of a CUDA library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

# Layout of the headers as in cuobjdump: magic, version, size of the header, bytes that follow.
_MAGIC, _HEADER = b"\x50\xed\x55\xba", struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")  # kind, version, size of the header, bytes that follow; the architecture is at 28
_KINDS = (1, 2, 4, 8, 16)
PTX = 1


class Code(NamedTuple):
    """Locate the device code for one architecture.

    Attributes:
        kind: PTX, or another number for machine code.
        arch: architecture, such as 90.
        start, size: bytes in the file.
    """

    kind: int
    arch: int
    start: int
    size: int


def find_codes(data: bytearray) -> Iterator[Code]:
    """Yield the device code in the bytes of a library."""
    at = data.find(_MAGIC)
    while at >= 0:
        _, version, header, size = _HEADER.unpack_from(data, at) if at + 16 <= len(data) else (0, 0, 0, 0)
        found = version == 1 and header == 16 and size < len(data) - at
        end = at + 16 + size if found else at + 4
        if found:
            yield from _entries(data, at + 16, end)
        at = data.find(_MAGIC, end)


def _entries(data: bytearray, at: int, end: int) -> Iterator[Code]:
    while at + 64 <= end:
        kind, _, header, size = _ENTRY.unpack_from(data, at)
        if kind not in _KINDS or not 32 <= header <= 512:
            return
        (arch,) = struct.unpack_from("<I", data, at + 28)
        yield Code(kind, arch, at + header, size)
        at += header + size
