"""JPEGs of given coefficients: values, codes and lengths that image encoders never write."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import jpeg_parts as jp
from odd_images import JFIF

Block = Mapping[int, int]  # zigzag index: coefficient; missing ones are 0


def craft(
    blocks: Sequence[Block],
    *,
    steps: Mapping[int, int] | None = None,
    mcu_blocks: int = 1,
    code_bits: int = 8,
    end: Sequence[tuple[int, str]] = ((0, ""),),
) -> bytes:
    """Encode blocks as a JPEG one MCU high: grey, or 4:2:0 with 6 blocks per MCU.

    steps: zigzag index: step of the quantiser, 1 by default. code_bits: length of every Huffman code.
    end: symbols, each with the bits after its code, that end a block without its last coefficient.
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
    return b"".join([jp.SOI, *parts, jp.pack_bits(text), jp.EOI])


def _symbols(block: Block, before: int, end: Sequence[tuple[int, str]]) -> list[tuple[int, int, str]]:
    """Return all symbols of a block: table (0 for DC), symbol, bits after its code."""
    size, bits = jp.magnitude(block.get(0, 0) - before)
    out, last = [(0, size, bits)], 0
    for place in sorted(k for k in block if k > 0):
        size, bits = jp.magnitude(block[place])
        run = place - last - 1
        out += [(1, 0xF0, "")] * (run // 16) + [(1, run % 16 << 4 | size, bits)]
        last = place
    return out if last >= 63 else [*out, *((1, symbol, bits) for symbol, bits in end)]


def overflow_dc(peak: int) -> bytes:
    """Forty blocks: the DC coefficients grow to `peak` in steps of 11 bits, then return to 0 long before the last."""
    rising = [*range(0, peak, 2047), peak]
    values = [*rising, *rising[::-1]]
    return craft([{0: value} for value in (values + [0] * 40)[:40]])


def longest_mcus() -> bytes:
    """Fourteen MCUs: one of half the maximum size, eleven of the maximum size (1,249 bytes), two plain ones.

    After the library has unstuffed 8,192 bytes, the last 20 bytes of the sixth one are missing.
    """
    rest = dict.fromkeys(range(1, 64), 1023)
    full = [{0: 1023 if (n if n % 6 < 4 else n // 6) % 2 else -1023, **rest} for n in range(66)]
    half, plain = [*full[:3], dict.fromkeys(range(1, 21), 1023), {}, {}], [{0: 100}] * 6
    return craft([*half, *full, *plain, *plain], mcu_blocks=6, code_bits=16)


def shortest_blocks() -> list[bytes]:
    """Blocks of two bits each; also with half the number of blocks that a scan of this size may claim."""
    data = craft([{}] * 4000, code_bits=1)
    return [data, jp.with_frame(data, size=(8 * 8000, 8))]


def extreme_blocks() -> list[bytes]:
    """Blocks with coefficients so large that arithmetic overflows unless they are refused."""
    steps = dict.fromkeys(range(64), 2047)
    return [craft([dict.fromkeys(range(64), value)] * 2, steps=steps) for value in (4, -4, 1023, -1023)]


def crafted_corpus() -> list[bytes]:
    """Return one of each: beyond a limit, and just within."""
    limits = [craft([{5: 1 << bits}, {0: 9}]) for bits in (9, 10, 14)] + [craft([{0: 1 << 11}, {}])]
    claimed = [jp.with_frame(data, size=(4000, 4000)) for data in limits]
    stuffed = craft([dict.fromkeys(range(1, 64), 1023)] * 150)  # more than 1/4 of a copy's bytes are 0xFF
    long = [longest_mcus(), *shortest_blocks(), stuffed]
    return [*limits, *claimed, *map(overflow_dc, (32767, 32768)), *long, *extreme_blocks()]
