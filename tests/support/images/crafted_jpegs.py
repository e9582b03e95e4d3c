"""JPEGs made of given coefficients: values, codes and lengths that no encoder of images writes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import jpeg_parts as jp
from odd_images import JFIF

Block = Mapping[int, int]  # zigzag index: coefficient; those left out are 0


def crafted(
    blocks: Sequence[Block],
    *,
    steps: Mapping[int, int] | None = None,
    mcu_blocks: int = 1,
    code_bits: int = 8,
    end: Sequence[tuple[int, str]] = ((0, ""),),
) -> bytes:
    """A JPEG one MCU high of these blocks: grey, or 4:2:0 with 6 blocks an MCU.

    steps: zigzag index: step of the quantiser, 1 where none is given. code_bits: length of every Huffman code.
    end: symbols, each with the bits after its code, that end a block which does not reach its last coefficient.
    """
    before, symbols = [0, 0, 0], list[tuple[int, int, str]]()
    for number, block in enumerate(blocks):
        component = max(0, number % mcu_blocks - 3)
        symbols += _symbols(block, before[component], end)
        before[component] = block.get(0, 0)
    used = [sorted({symbol for table, symbol, _ in symbols if table == wanted}) for wanted in (0, 1)]
    text = "".join(f"{used[table].index(symbol):0{code_bits}b}{bits}" for table, symbol, bits in symbols)
    counts = [bytes(len(part) if bits == code_bits else 0 for bits in range(1, 17)) for part in used]
    ids, factor = (b"\1\2\3", 2) if mcu_blocks == 6 else (b"\1", 1)
    frame = b"".join(bytes([ident, factor << 4 | factor if ident == 1 else 0x11, 0]) for ident in ids)
    size = struct.pack(">BHHB", 8, 8 * factor, 8 * factor * len(blocks) // mcu_blocks, len(ids))
    parts = [
        JFIF,
        jp.segment(jp.DQT, struct.pack(">B64H", 0x10, *((steps or {}).get(k, 1) for k in range(64)))),
        jp.segment(jp.SOF1, size + frame),
        *(jp.segment(jp.DHT, bytes([table << 4]) + counts[table] + bytes(used[table])) for table in (0, 1)),
        jp.segment(jp.SOS, bytes([len(ids)]) + b"".join(bytes([ident, 0]) for ident in ids) + b"\0\x3f\0"),
    ]
    return b"".join([jp.SOI, *parts, jp.coded(text), jp.EOI])


def _symbols(block: Block, before: int, end: Sequence[tuple[int, str]]) -> list[tuple[int, int, str]]:
    """Table (0 for DC), symbol, and the bits after its code, of all symbols of a block."""
    size, bits = jp.magnitude(block.get(0, 0) - before)
    out, last = [(0, size, bits)], 0
    for place in sorted(k for k in block if k > 0):
        size, bits = jp.magnitude(block[place])
        run = place - last - 1
        out += [(1, 0xF0, "")] * (run // 16) + [(1, run % 16 << 4 | size, bits)]
        last = place
    return out if last >= 63 else [*out, *((1, symbol, bits) for symbol, bits in end)]


def overflowing(peak: int) -> bytes:
    """Forty blocks whose DC coefficients grow to `peak` by 11 bits each, and fall to 0 again long before the last."""
    rising = [*range(0, peak, 2047), peak]
    values = [*rising, *rising[::-1]]
    return crafted([{0: value} for value in (values + [0] * 40)[:40]])


def longest_mcus() -> bytes:
    """Fourteen MCUs: eleven of as many bits as there can be, 1,249 bytes, between one of half as many and two plain.

    Where the library has unstuffed 8,192 bytes, the last 20 are missing of the sixth of them.
    """
    rest = dict.fromkeys(range(1, 64), 1023)
    full = [{0: 1023 if (n if n % 6 < 4 else n // 6) % 2 else -1023, **rest} for n in range(66)]
    half, plain = [*full[:3], dict.fromkeys(range(1, 21), 1023), {}, {}], [{0: 100}] * 6
    return crafted([*half, *full, *plain, *plain], mcu_blocks=6, code_bits=16)


def shortest_blocks() -> list[bytes]:
    """Blocks of two bits each; and half of as many blocks as a scan of that size may claim."""
    data = crafted([{}] * 4000, code_bits=1)
    return [data, jp.with_frame(data, size=(8 * 8000, 8))]


def extreme_blocks() -> list[bytes]:
    """Blocks of coefficients so large that arithmetic overflows where they are not refused."""
    steps = dict.fromkeys(range(64), 2047)
    return [crafted([dict.fromkeys(range(64), value)] * 2, steps=steps) for value in (4, -4, 1023, -1023)]


def crafted_corpus() -> list[bytes]:
    """One of each: what is beyond a limit, and what is just within."""
    limits = [crafted([{5: 1 << bits}, {0: 9}]) for bits in (9, 10, 14)] + [crafted([{0: 1 << 11}, {}])]
    claimed = [jp.with_frame(data, size=(4000, 4000)) for data in limits]
    stuffed = crafted([dict.fromkeys(range(1, 64), 1023)] * 150)  # more than a fourth of a copy's bytes are 0xFF
    long = [longest_mcus(), *shortest_blocks(), stuffed]
    return [*limits, *claimed, *map(overflowing, (32767, 32768)), *long, *extreme_blocks()]
