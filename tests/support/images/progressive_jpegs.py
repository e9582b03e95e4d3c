"""Progressive JPEGs: of a scene, split into scans, and of given symbols."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import jpeg_parts as jp
import numpy as np
from jpeg_samples import PILLOW_SAMPLINGS
from odd_images import JFIF, jpeg, luma, textured


def progressive(kind: str, height: int, width: int, quality: int = 85, **restarts: int) -> bytes:
    """A file of a sampling that Pillow writes, or of grey, with libjpeg's own script."""
    pixels = np.ascontiguousarray(textured(max(height, 48), max(width, 48))[:height, :width])
    if kind == "grey":
        return jpeg(luma(pixels)[..., 0], quality=quality, progressive=True, **restarts)
    return jpeg(pixels, quality=quality, subsampling=PILLOW_SAMPLINGS[kind], progressive=True, **restarts)


class Scans(NamedTuple):
    """A progressive JPEG in parts: the bytes before its scans, and each scan with the tables before it."""

    head: bytes
    scans: list[bytes]

    def joined(self, *order: int) -> bytes:
        """Return the file with only the scans of `order`."""
        return b"".join([self.head, *(self.scans[number] for number in order), jp.EOI])


def split_scans(data: bytes) -> Scans:
    """Split a file that has Huffman tables before its scans."""
    _, start, _ = next(found for found in jp.segments(data) if found[0] == jp.DHT)
    scans, at, begin, in_scan = list[bytes](), start, start, False
    while True:
        at = data.index(b"\xff", at)
        marker = data[at + 1]
        if in_scan and (marker == 0 or 0xD0 <= marker <= 0xD7):
            at += 2
            continue
        if in_scan:
            scans.append(data[begin:at])
            begin, in_scan = at, False
        if marker == jp.EOI[1]:
            return Scans(data[:start], scans)
        in_scan = marker == jp.SOS
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


class Scan(NamedTuple):
    """A scan of a crafted file: header fields and code.

    symbols: Huffman symbols (None for bits alone), each with the bits that follow, for example (0x21, "1"); None for a
        restart marker.
    """

    first: int
    last: int
    high: int
    low: int
    symbols: Sequence[tuple[int | None, str] | None]


def crafted_scans(scans: Sequence[Scan], *, blocks: int, rows: int = 1, restart: int = 0, code_bits: int = 8) -> bytes:
    """A grey JPEG of these scans, `blocks` blocks wide and `rows` blocks high; Huffman codes have `code_bits` bits."""
    parts = [
        jp.SOI,
        JFIF,
        jp.segment(jp.DQT, bytes([0]) + bytes([1] * 64)),
        jp.segment(jp.SOF2, struct.pack(">BHHB", 8, 8 * rows, 8 * blocks, 1) + b"\1\x11\0"),
        jp.segment(jp.DRI, struct.pack(">H", restart)) if restart else b"",
    ]
    for scan in scans:
        used = sorted({item[0] for item in scan.symbols if item is not None and item[0] is not None})
        if used:
            counts = bytes(len(used) if bits == code_bits else 0 for bits in range(1, 17))
            parts.append(jp.segment(jp.DHT, bytes([0x10 if scan.first else 0]) + counts + bytes(used)))
        parts.append(jp.segment(jp.SOS, bytes([1, 1, 0, scan.first, scan.last, scan.high << 4 | scan.low])))
        text, restarts = "", 0
        for item in [*scan.symbols, None]:
            if item is not None:
                symbol, bits = item
                text += ("" if symbol is None else f"{used.index(symbol):0{code_bits}b}") + bits
                continue
            parts.append(jp.pack_bits(text))
            parts.append(bytes([0xFF, 0xD0 + restarts % 8]))
            text, restarts = "", restarts + 1
        parts.pop()  # the marker after the last segment
    return b"".join([*parts, jp.EOI])


def progressive_noise(quality: int) -> bytes:
    """A file with scans larger than the decoder's buffer."""
    noise = np.random.default_rng(quality).integers(0, 256, (96, 120, 3), np.uint8)
    return jpeg(noise, quality=quality, progressive=True, subsampling=2)


def progressive_corpus() -> list[bytes]:
    """Long end-of-band runs, blocks with all coefficients known, and images that claim to be larger."""
    dc, ones = Scan(0, 0, 0, 0, [(0, "")] * 2000), [(0x01, "1")] * 63
    runs = crafted_scans([dc, Scan(1, 63, 0, 0, [(0xA0, f"{2000 - 1024:010b}")])], blocks=2000, code_bits=1)
    first = Scan(1, 63, 0, 1, [*ones * 7, (0, "")])
    second = Scan(1, 63, 1, 0, [(0x30, "000"), (None, "10" * 220 + "1")])
    known = crafted_scans([Scan(0, 0, 0, 0, [(0, "")] * 8), first, second], blocks=8)
    return [runs, jp.with_frame(runs, size=(6000, 1000)), known, jp.with_frame(known, size=(2000, 2000))]
