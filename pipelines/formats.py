"""Image formats by their magic bytes, with the sizes they declare."""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.pipelines.errors import LoaderError

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


class Declared(NamedTuple):
    """What the first bytes of a file say it is; sides in pixels (0, 0 for JPEG: its header is read elsewhere)."""

    format: str  # a name of Pillow's
    width: int
    height: int


def _short(name: str) -> LoaderError:
    return LoaderError("E-TRUNC", f"the file ends inside its {name} header")


def _png(data: bytes) -> tuple[int, int]:
    if len(data) < 33:
        raise _short("PNG")
    if data[12:16] != b"IHDR":
        raise LoaderError("E-CORRUPT", "the PNG does not begin with an IHDR chunk")
    if data.rfind(b"IEND") < 0:
        raise LoaderError("E-TRUNC", "the PNG has no IEND chunk: it was cut short")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif(data: bytes) -> tuple[int, int]:
    if len(data) < 13:
        raise _short("GIF")
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _bmp(data: bytes) -> tuple[int, int]:
    if len(data) < 26:
        raise _short("BMP")
    if struct.unpack_from("<I", data, 14)[0] == 12:  # OS/2 core header
        width, height = struct.unpack_from("<HH", data, 18)
        return width, height
    width, height = struct.unpack_from("<ii", data, 18)
    return abs(width), abs(height)


def _webp(data: bytes) -> tuple[int, int]:
    if len(data) < 30:
        raise _short("WebP")
    if struct.unpack_from("<I", data, 4)[0] + 8 > len(data):
        raise LoaderError("E-TRUNC", "the WebP is shorter than its RIFF header says")
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise LoaderError("E-CORRUPT", "the WebP holds no VP8 image")


def declared(data: bytes) -> Declared:
    """Format and declared size, read before anything is allocated.

    JPEG, PNG, WebP, BMP and GIF, whatever the file is called. Raises LoaderError: E-EMPTY for no bytes, E-FORMAT for
    anything else, E-TRUNC and E-CORRUPT for a header that is cut or senseless.
    """
    if data.startswith(b"\xff\xd8"):
        return Declared("JPEG", 0, 0)
    if not data:
        raise LoaderError("E-EMPTY", "the file is empty")
    if data.startswith(_PNG_MAGIC):
        return Declared("PNG", *_png(data))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return Declared("GIF", *_gif(data))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return Declared("WEBP", *_webp(data))
    if data.startswith(b"BM"):
        return Declared("BMP", *_bmp(data))
    if any(magic.startswith(data) for magic in (b"\xff\xd8", _PNG_MAGIC, b"GIF8", b"RIFF", b"BM")):
        raise LoaderError("E-TRUNC", f"only {len(data)} bytes of an image file")
    raise LoaderError("E-FORMAT", f"no JPEG, PNG, WebP, BMP or GIF: the file begins with {data[:16]!r}")
