"""JPEGs written by hand: a small baseline encoder, and edits of the segments of existing files.

The encoder exists because libjpeg writes only a small part of what the standard allows. Here, component ids, sampling
factors, scans and markers are free. It is slow (entropy coding in Python): for images of a few thousand pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
SOF0, SOF1, SOF2, SOF3 = 0xC0, 0xC1, 0xC2, 0xC3
DHT, SOS, DQT, DNL, DRI, APP0, APP1, APP2, APP14, COM = 0xC4, 0xDA, 0xDB, 0xDC, 0xDD, 0xE0, 0xE1, 0xE2, 0xEE, 0xFE

# ITU-T T.81, tables K.1, K.3 and K.5: the luminance tables serve all components here.
_LUMA_QUANTISER = """
16 11 10 16 24 40 51 61 12 12 14 19 26 58 60 55 14 13 16 24 40 57 69 56 14 17 22 29 51 87 80 62
18 22 37 56 68 109 103 77 24 35 55 64 81 104 113 92 49 64 78 87 103 121 120 101 72 92 95 98 112 100 103 99"""
_DC_COUNTS = bytes([0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
_DC_SYMBOLS = bytes(range(12))
_AC_COUNTS = bytes([0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7D])
_AC_SYMBOLS = bytes.fromhex(
    "01020300041105122131410613516107227114328191a1082342b1c11552d1f02433627282090a161718191a25262728292a34353637"
    "38393a434445464748494a535455565758595a636465666768696a737475767778797a838485868788898a92939495969798999aa2a3"
    "a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae1e2e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9fa"
)
_ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, (i % 8 if (i // 8 + i % 8) % 2 == 0 else i // 8)))
_DCT = np.array([[np.cos((2 * x + 1) * u * np.pi / 16) * (0.5 if u else 8**-0.5) for x in range(8)] for u in range(8)])


@dataclass(frozen=True, eq=False)
class Component:
    """One colour component: its id in the file, sampling factors, and its plane at full resolution (HxW, 0 to 255)."""

    plane: np.ndarray
    ident: int
    h: int = 1
    v: int = 1


def segment(marker: int, payload: bytes) -> bytes:
    """A marker segment with its length field."""
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def ycc(rgb: np.ndarray) -> list[np.ndarray]:
    """Y, Cb and Cr planes (JFIF, ITU-R BT.601 full range) of an HxWx3 image, float."""
    r, g, b = np.moveaxis(rgb.astype(float), -1, 0)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    return [y, (b - y) / 1.772 + 128, (r - y) / 1.402 + 128]


def encode(
    components: Sequence[Component],
    *,
    interleaved: bool = True,
    head: bytes = b"",
    restart: int = 0,
    quality: int = 95,
    sof: int = SOF0,
) -> bytes:
    """A sequential JPEG of 8 bits.

    head: segments to put after SOI, for example an Adobe marker. restart: MCUs between restart markers, 0 for none.
    """
    height, width = components[0].plane.shape
    h_max, v_max = max(c.h for c in components), max(c.v for c in components)
    quantiser = np.array([int(v) for v in _LUMA_QUANTISER.split()])
    quantiser = np.clip((quantiser * (200 - 2 * quality) + 50) // 100, 1, 255)
    blocks = [_blocks(c, h_max, v_max, quantiser) for c in components]
    out = [SOI, head, segment(DQT, b"\0" + bytes(int(quantiser[z]) for z in _ZIGZAG))]
    factors = b"".join(bytes([c.ident, c.h << 4 | c.v, 0]) for c in components)
    out.append(segment(sof, struct.pack(">BHHB", 8, height, width, len(components)) + factors))
    out.append(segment(DHT, b"\x00" + _DC_COUNTS + _DC_SYMBOLS))
    out.append(segment(DHT, b"\x10" + _AC_COUNTS + _AC_SYMBOLS))
    if restart:
        out.append(segment(DRI, struct.pack(">H", restart)))
    scans = [list(range(len(components)))] if interleaved else [[i] for i in range(len(components))]
    for scan in scans:
        ids = b"".join(bytes([components[i].ident, 0]) for i in scan)
        out.append(segment(SOS, bytes([len(scan)]) + ids + b"\0\x3f\0"))
        if len(scan) > 1:
            mcus = _interleaved_mcus([(components[i].h, components[i].v, blocks[i]) for i in scan])
        else:  # a scan of one component has no padding blocks, for any sampling factors (T.81, A.2.2)
            c = components[scan[0]]
            rows, columns = -(-height * c.v // (8 * v_max)), -(-width * c.h // (8 * h_max))
            mcus = [[(0, b)] for row in blocks[scan[0]][:rows] for b in row[:columns]]
        out.append(_entropy_coded(mcus, restart))
    return b"".join([*out, EOI])


def _blocks(component: Component, h_max: int, v_max: int, quantiser: np.ndarray) -> np.ndarray:
    """Quantised coefficients in zigzag order, rows x columns x 64, padded to whole MCUs."""
    height, width = component.plane.shape
    padding = (0, -height % (8 * v_max)), (0, -width % (8 * h_max))
    plane = np.pad(component.plane.astype(float), padding, mode="edge")
    fy, fx = v_max // component.v, h_max // component.h
    plane = plane.reshape(plane.shape[0] // fy, fy, plane.shape[1] // fx, fx).mean((1, 3)) - 128
    tiles = plane.reshape(plane.shape[0] // 8, 8, plane.shape[1] // 8, 8).swapaxes(1, 2)
    coefficients = np.rint((_DCT @ tiles @ _DCT.T).reshape(*tiles.shape[:2], 64) / quantiser)
    return coefficients.astype(int)[..., _ZIGZAG]


def _interleaved_mcus(parts: list[tuple[int, int, np.ndarray]]) -> list[list[tuple[int, np.ndarray]]]:
    h0, v0, first = parts[0]
    return [
        [
            (index, blocks[row * v + dy, column * h + dx])
            for index, (h, v, blocks) in enumerate(parts)
            for dy in range(v)
            for dx in range(h)
        ]
        for row in range(first.shape[0] // v0)
        for column in range(first.shape[1] // h0)
    ]


def huffman(counts: bytes, symbols: bytes) -> dict[int, str]:
    codes, code, position = {}, 0, 0
    for length, count in enumerate(counts, 1):
        for symbol in symbols[position : position + count]:
            codes[symbol] = format(code, f"0{length}b")
            code += 1
        position += count
        code <<= 1
    return codes


_DC_CODES, _AC_CODES = huffman(_DC_COUNTS, _DC_SYMBOLS), huffman(_AC_COUNTS, _AC_SYMBOLS)


def magnitude(value: int) -> tuple[int, str]:
    size = abs(value).bit_length()
    return size, format(value if value > 0 else value + (1 << size) - 1, f"0{size}b") if size else ""


def _block_bits(block: np.ndarray, previous_dc: int) -> str:
    size, bits = magnitude(int(block[0]) - previous_dc)
    out, run = [_DC_CODES[size], bits], 0
    last = int(np.flatnonzero(block)[-1]) if block.any() else 0
    for value in block[1 : last + 1].tolist():
        if value == 0:
            run += 1
            continue
        out.extend([_AC_CODES[0xF0]] * (run // 16))
        size, bits = magnitude(value)
        out.extend([_AC_CODES[run % 16 << 4 | size], bits])
        run = 0
    return "".join(out if last == 63 else [*out, _AC_CODES[0]])


def _entropy_coded(mcus: list[list[tuple[int, np.ndarray]]], restart: int) -> bytes:
    out = []
    step = restart or len(mcus)
    for number, start in enumerate(range(0, len(mcus), step)):
        bits, previous = [], dict.fromkeys(range(4), 0)
        for mcu in mcus[start : start + step]:
            for index, block in mcu:
                bits.append(_block_bits(block, previous[index]))
                previous[index] = int(block[0])
        if number:
            out.append(bytes([0xFF, 0xD0 + (number - 1) % 8]))
        out.append(pack_bits("".join(bits)))
    return b"".join(out)


def pack_bits(bits: str) -> bytes:
    """Pack binary digits as a segment of entropy-coded data: padded with ones, each 0xFF followed by 0."""
    bits += "1" * (-len(bits) % 8)
    return int(bits or "0", 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of each segment between SOI and the first scan's data; SOS is the last."""
    at = 2
    while True:
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield marker, at, end
        if marker == SOS:
            return
        at = end


def remove_segments(data: bytes, marker: int) -> bytes:
    """The file without the segments of one kind; for SOS, also without the data of the scan."""
    keep, end = [SOI], 2
    for found, start, end in segments(data):
        if found != marker:
            keep.append(data[start:end])
    return b"".join([*keep, EOI if marker == SOS else data[end:]])


def insert(data: bytes, extra: bytes) -> bytes:
    """The file with `extra` after the JFIF header, or after SOI if there is none."""
    marker, _, end = next(segments(data))
    at = end if marker == APP0 else 2
    return data[:at] + extra + data[at:]


def with_frame(
    data: bytes, *, marker: int | None = None, precision: int | None = None, size: tuple[int, int] | None = None
) -> bytes:
    """The file with only its frame header (SOF) changed; `size` is (width, height) in pixels."""
    out = bytearray(data)
    start = next(start for found, start, _ in segments(data) if found in (SOF0, SOF1, SOF2))
    if marker is not None:
        out[start + 1] = marker
    if precision is not None:
        out[start + 4] = precision
    if size is not None:
        out[start + 5 : start + 9] = struct.pack(">HH", size[1], size[0])
    return bytes(out)
