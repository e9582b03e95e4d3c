"""The coefficients of a baseline JPEG, read in Python: a reference for files that are coded anew."""

from __future__ import annotations

import functools
import re
import struct
from typing import NamedTuple

import jpeg_parts as jp
import numpy as np

Block = tuple[int, ...]  # DC, then place and value of each AC coefficient that is not 0


class Image(NamedTuple):
    """What lossless re-coding must keep."""

    width: int
    height: int
    factors: list[tuple[int, int]]  # of each component, and its quantiser
    quantisers: list[list[int]]
    blocks: list[Block]  # in the order of the scan


class Coded(NamedTuple):
    """An image, and of each Huffman table the lengths of its codes and how often each is used, by symbol."""

    image: Image
    tables: list[tuple[dict[int, int], dict[int, int]]]


class _Bits:
    """A segment of entropy-coded data, read from its front."""

    def __init__(self, data: bytes) -> None:
        self._data = data.replace(b"\xff\0", b"\xff") + b"\xff" * 4
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._data) * 8 - 32 - self.at

    def peek(self) -> int:
        """The next 16 bits."""
        start = self.at >> 3
        return int.from_bytes(self._data[start : start + 3], "big") >> (8 - (self.at & 7)) & 0xFFFF

    def value(self, size: int) -> int:
        """A number of `size` bits as T.81 writes it: with a leading 0 it is negative."""
        bits = self.peek() >> (16 - size)
        self.at += size
        return bits if bits >> (size - 1) else bits - (1 << size) + 1


class _Table:
    """A Huffman table: length and symbol by the next 16 bits, and how often each symbol was read."""

    def __init__(self, counts: bytes, symbols: bytes) -> None:
        self.lengths = {symbol: len(code) for symbol, code in jp.huffman(counts, symbols).items()}
        self.used = dict.fromkeys(self.lengths, 0)
        found: list[tuple[int, int]] = []
        for symbol, length in self.lengths.items():  # shorter codes first, each after the one before
            found += [(length, symbol)] * (1 << (16 - length))
        self._found = found

    def symbol(self, bits: _Bits) -> int:
        length, symbol = self._found[bits.peek()]
        self.used[symbol] += 1
        bits.at += length
        return symbol


@functools.cache
def read_jpeg(data: bytes) -> Coded:
    """Read a file of one scan that holds all its components."""
    quantisers, tables, frame, scan, interval, begin = dict[int, list[int]](), dict[int, _Table](), b"", b"", 0, 0
    for marker, start, end in jp.segments(data):
        payload = data[start + 4 : end]
        if marker == jp.DQT:
            while payload:
                wide = payload[0] >> 4
                steps = np.frombuffer(payload[1 : 65 + 64 * wide], ">u2" if wide else "u1")
                quantisers[payload[0] & 15], payload = steps.tolist(), payload[65 + 64 * wide :]
        elif marker == jp.DHT:
            while payload:
                size = 17 + sum(payload[1:17])
                tables[payload[0]], payload = _Table(payload[1:17], payload[17:size]), payload[size:]
        elif marker in (jp.SOF0, jp.SOF1):
            frame = payload
        elif marker == jp.DRI:
            interval = int.from_bytes(payload, "big")
        elif marker == jp.SOS:
            scan, begin = payload, end
    height, width, count = struct.unpack_from(">HHB", frame, 1)
    idents, samplings, numbers = frame[6::3], frame[7::3], frame[8::3]
    assert (scan[0], scan[1 : 1 + 2 * count : 2]) == (count, idents)
    factors = [(both >> 4, both & 15) if count > 1 else (1, 1) for both in samplings]
    across, down = (8 * max(each) for each in zip(*factors, strict=True))
    mcus = -(-width // across) * -(-height // down)
    pairs = [(tables[both >> 4], tables[0x10 | both & 15]) for both in scan[2 : 2 + 2 * count : 2]]
    blocks, coded = list[Block](), data[begin : data.rindex(jp.EOI)]
    for number, segment in enumerate(re.split(rb"\xff[\xd0-\xd7]", coded)):
        bits, before = _Bits(segment), [0] * count
        for _ in range(min(interval or mcus, mcus - number * interval)):
            for component, (h, v) in enumerate(factors):
                for _ in range(h * v):
                    blocks.append(_read_block(bits, *pairs[component], before[component]))
                    before[component] = blocks[-1][0]
        assert 0 <= bits.left < 8
    assert len(blocks) == mcus * sum(h * v for h, v in factors)
    image = Image(width, height, factors, [quantisers[number] for number in numbers], blocks)
    return Coded(image, [(table.lengths, table.used) for table in tables.values()])


def _read_block(bits: _Bits, dc: _Table, ac: _Table, before: int) -> Block:
    size = dc.symbol(bits)
    found, place = [before + (bits.value(size) if size else 0)], 0
    while place < 63:
        symbol = ac.symbol(bits)
        place += (symbol >> 4) + 1
        if symbol & 15:
            assert place < 64
            found += place, bits.value(symbol & 15)
        elif symbol != 0xF0:
            assert symbol == 0
            break
    return tuple(found)
