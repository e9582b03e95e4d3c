"""Recognises PNG, GIF, BMP, WebP and TIFF files by their first bytes, reads their size and detects truncation.

Decoders do not do this here, because too large and truncated files must be rejected before decoding.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample import tiff_header as tiff

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# Limits beyond which a file is junk, or crafted to keep a decoder busy. Encoders write GIF sub-blocks of 255 bytes and
# PNG chunks of 8 kB or more. Pillow reads the data before the first frame of a GIF byte by byte.
_GIF_BLOCKS, _GIF_BLOCK_BYTES, _GIF_LEAD_BYTES = 100_000, 64, 1 << 20
_PNG_CHUNKS, _PNG_CHUNK_BYTES = 10_000, 1024
_GIF_INTRODUCER = re.compile(rb"[!,;]")
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_MAGICS = (b"\xff\xd8", _PNG_MAGIC, b"GIF87a", b"GIF89a", b"RIFF", b"BM", *tiff.MAGICS)


class FileFormat(NamedTuple):
    """Declarations in the first bytes of a file.

    Attributes:
        name: Pillow's name of the format.
        width: declared width of the image, in pixels.
        height: declared height of the image, in pixels.
    """

    name: str
    width: int
    height: int


def _cut_header(name: str) -> LoaderError:
    return LoaderError("E-TRUNC", f"the file ends inside its {name} header")


def _read_png_size(data: bytes) -> tuple[int, int]:
    if len(data) < 33:
        raise _cut_header("PNG")
    if data[12:16] != b"IHDR":
        raise LoaderError("E-CORRUPT", "the PNG does not begin with an IHDR chunk")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _find_gif_frames(data: bytes) -> Iterator[int]:
    """Yield the offset of each image descriptor. Raises LoaderError E-TRUNC unless a trailer follows the last one.

    GIF89a, appendix B. Bytes that do not begin a block are skipped, as in Pillow.
    """
    left = limit = _GIF_BLOCKS + len(data) // _GIF_BLOCK_BYTES
    try:
        position = 13 + _colour_table_bytes(data[10])
        while left > 0 and (introducer := data[position]) != 0x3B:
            if introducer not in b"!,":
                found = _GIF_INTRODUCER.search(data, position)
                if found is None:
                    raise IndexError
                position = found.start()
                continue
            if introducer == 0x2C:
                yield position
                position += 11 + _colour_table_bytes(data[position + 9])
            else:
                position += 2
            while left > 0 and (length := data[position]) != 0:  # length of a sub-block
                position += 1 + length
                left -= 1
            position += 1
            left -= 1
    except IndexError:
        raise LoaderError("E-TRUNC", "the GIF has no trailer: it was truncated") from None
    if left <= 0:
        raise LoaderError("E-CORRUPT", f"the GIF has more than {limit:,} blocks in {len(data):,} bytes")


def _colour_table_bytes(flags: int) -> int:
    """Return the length of the colour table that the flags declare, in bytes."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _read_gif_size(data: bytes) -> tuple[int, int]:
    """Return the size of the screen, enlarged to contain the first frame, as in Pillow."""
    if len(data) < 13:
        raise _cut_header("GIF")
    width, height = struct.unpack_from("<HH", data, 6)
    frame = next(_find_gif_frames(data), None)
    if frame is None or len(data) < frame + 9:
        return width, height
    if frame > _GIF_LEAD_BYTES:
        raise LoaderError("E-CORRUPT", f"the GIF's first frame begins only after {frame:,} bytes of other data")
    x, y, frame_width, frame_height = struct.unpack_from("<HHHH", data, frame + 1)
    return max(width, x + frame_width), max(height, y + frame_height)


def _read_bmp_size(data: bytes) -> tuple[int, int]:
    if len(data) < (26 if _is_os2(data) else 34):
        raise _cut_header("BMP")
    if _is_os2(data):
        width, height = struct.unpack_from("<HH", data, 18)
        return width, height
    width, height = struct.unpack_from("<ii", data, 18)
    return abs(width), abs(height)


def _is_os2(data: bytes) -> bool:
    return data[14:18] == struct.pack("<I", 12)  # size of its header


def _find_bmp_end(data: bytes) -> int:
    """Return where the last row ends, in bytes; 0 for run-length coding, where only a decoder can find the end."""
    width, height = _read_bmp_size(data)
    os2, rows = _is_os2(data), struct.unpack_from("<I", data, 10)[0]
    bits = struct.unpack_from("<H", data, 24 if os2 else 28)[0]
    plain = os2 or struct.unpack_from("<I", data, 30)[0] in (0, 3)
    return rows + height * (-(-width * bits // 32) * 4) if plain else 0


def _read_webp_size(data: bytes) -> tuple[int, int]:
    if len(data) < 30:
        raise _cut_header("WebP")
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise LoaderError("E-CORRUPT", "the WebP does not contain a VP8 image")


def read_format(data: bytes) -> FileFormat:
    """Read format and size of a file other than a JPEG from its content; its name does not matter.

    Raises LoaderError: E-EMPTY for no bytes, E-FORMAT for anything but PNG, WebP, BMP, GIF and TIFF, E-TRUNC for a
    truncated header, E-CORRUPT for an invalid one, E-UNSUPPORTED.
    """
    if not data:
        raise LoaderError("E-EMPTY", "the file is empty")
    if data.startswith(_PNG_MAGIC):
        return FileFormat("PNG", *_read_png_size(data))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return FileFormat("GIF", *_read_gif_size(data))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return FileFormat("WEBP", *_read_webp_size(data))
    if data.startswith(b"BM"):
        return FileFormat("BMP", *_read_bmp_size(data))
    if data.startswith(tiff.MAGICS):
        return FileFormat("TIFF", *tiff.read_tiff(data)[:2])
    if len(data) < 12 and (any(m.startswith(data) for m in _MAGICS) or data.startswith(b"RIFF")):
        raise LoaderError("E-TRUNC", f"the image file has only {len(data)} bytes")
    raise LoaderError("E-FORMAT", f"not a JPEG, PNG, WebP, BMP, GIF or TIFF: the file begins with {data[:16]!r}")


def begins_like_image(data: bytes) -> bool:
    """Return whether a file begins like one of the formats of read_format, or like a JPEG."""
    return data.startswith(_MAGICS) and (not data.startswith(b"RIFF") or data[8:12] == b"WEBP")


def check_end(data: bytes, name: str) -> None:
    """Raise LoaderError E-TRUNC if the end of a file is missing, as far as the format `name` reveals it."""
    if name == "GIF":
        for _ in _find_gif_frames(data):
            pass
    elif name == "PNG":
        end = data.rfind(b"IEND")
        if end < 0 or end + 8 > len(data):
            raise LoaderError("E-TRUNC", "the PNG has no complete IEND chunk: it was truncated")
        _check_png_chunks(data)
    elif name == "WEBP":
        if struct.unpack_from("<I", data, 4)[0] + 8 > len(data):
            raise LoaderError("E-TRUNC", "the WebP is shorter than its RIFF header declares")
    elif name == "TIFF":
        if tiff.read_tiff(data).end > len(data):
            raise LoaderError("E-TRUNC", "the TIFF ends before its last strip")
    elif _find_bmp_end(data) > len(data):
        raise LoaderError("E-TRUNC", "the BMP ends before its last row")


def _check_png_chunks(data: bytes) -> None:
    position, limit = len(_PNG_MAGIC), _PNG_CHUNKS + len(data) // _PNG_CHUNK_BYTES
    for _ in range(limit):
        if position >= len(data):
            return
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    raise LoaderError("E-CORRUPT", f"the PNG has more than {limit:,} chunks in {len(data):,} bytes")


def bytes_per_pixel(data: bytes, name: str) -> int:
    """Return how many bytes per pixel the file declares, at least 4."""
    if name == "TIFF":
        header = tiff.read_tiff(data)
        return max(4, header.bits * header.samples // 8)
    return max(4, data[24] * _PNG_CHANNELS.get(data[25], 4) // 8) if name == "PNG" else 4


def has_16_bits(data: bytes, name: str) -> bool:
    """Return whether the file declares levels of 16 bits."""
    return data[24] == 16 if name == "PNG" else name == "TIFF" and tiff.read_tiff(data).bits == 16
