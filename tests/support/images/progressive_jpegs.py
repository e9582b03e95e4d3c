"""Progressive JPEGs: by scan scripts, with scans taken apart, and of given symbols."""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import jpeg_parts as jp
import numpy as np
import pytest
from odd_images import JFIF, jpeg

# Scripts of jpegtran (its wizard.txt): components: first - last coefficient, bits missing before, bits missing after.
SCRIPTS = {
    "bands alone": "0,1,2: 0-0,0,0; 2: 1-63,0,0; 0: 1-5,0,0; 1: 1-63,0,0; 0: 6-63,0,0;",
    "DC of each alone": "0: 0-0,0,1; 1: 0-0,0,0; 2: 0-0,0,2; 0: 0-0,1,0; 2: 0-0,2,1; 2: 0-0,1,0;"
    "0: 1-63,0,0; 1: 1-63,0,0; 2: 1-63,0,0;",
    "like mozjpeg": "0: 0-0,0,0; 1,2: 0-0,0,0; 0: 1-8,0,2; 1: 1-8,0,0; 2: 1-8,0,0; 0: 9-63,0,2; 0: 1-63,2,1;"
    "0: 1-63,1,0; 1: 9-63,0,0; 2: 9-63,0,0;",
    "DC of two components": "0,2: 0-0,0,1; 1: 0-0,0,1; 0,2: 0-0,1,0; 1: 0-0,1,0; 0: 1-63,0,0; 1: 1-63,0,0;2: 1-63,0,0;",
    "many bits later": "0,1,2: 0-0,0,3; 0: 1-63,0,4; 1: 1-63,0,1; 2: 1-20,0,2; 0: 1-63,4,3; 0,1,2: 0-0,3,2;"
    "0: 1-63,3,2; 2: 1-20,2,1; 2: 21-63,0,0; 0: 1-63,2,1; 0,1,2: 0-0,2,1; 0,1,2: 0-0,1,0; 2: 1-20,1,0; 1: 1-63,1,0;"
    "0: 1-63,1,0;",
    "ten bits later": "0,1,2: 0-0,0,9; 0: 1-63,0,9; 1: 1-63,0,0; 2: 1-63,0,0;"
    + "".join(f"0: 1-63,{bit},{bit - 1}; 0,1,2: 0-0,{bit},{bit - 1};" for bit in range(9, 0, -1)),
    "narrow bands": "0,1,2: 0-0,0,0; 0: 63-63,0,1; 0: 1-1,0,0; 0: 2-2,0,3; 0: 2-2,3,2; 0: 3-62,0,1; 0: 2-2,2,1;"
    "0: 2-2,1,0; 0: 3-62,1,0; 0: 63-63,1,0; 1: 1-2,0,0; 1: 3-63,0,0; 2: 1-63,0,0;",
}
GREY_SCRIPTS = {
    "bands alone": "0: 0-0,0,0; 0: 1-5,0,0; 0: 6-63,0,0;",
    "many bits later": "0: 0-0,0,3; 0: 1-63,0,4; 0: 0-0,3,2; 0: 1-63,4,3; 0: 1-63,3,2; 0: 1-63,2,1; 0: 1-63,1,0;"
    "0: 0-0,2,1; 0: 0-0,1,0;",
    "32 scans": "0: 0-0,0,0;" + "".join(f"0: {k}-{k},0,0;" for k in range(1, 31)) + "0: 31-63,0,0;",
    "33 scans": "0: 0-0,0,0;" + "".join(f"0: {k}-{k},0,0;" for k in range(1, 32)) + "0: 32-63,0,0;",
}


@functools.cache
def transcoded(data: bytes, *options: str) -> bytes:
    """The file as jpegtran makes it."""
    program = shutil.which("jpegtran")
    if program is None:
        pytest.skip("jpegtran is not installed (libjpeg-turbo-progs)")
    return subprocess.run([program, *options], input=data, stdout=subprocess.PIPE, check=True).stdout


@functools.cache
def scripted(data: bytes, script: str, *options: str) -> bytes:
    """The file with the scans of a script."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(script)
        file.flush()
        return transcoded(data, "-scans", file.name, *options)


def restarted(data: bytes, mcus: int) -> bytes:
    """The same coefficients as jpegtran writes them, with a restart marker after every `mcus` MCUs."""
    return transcoded(data, "-copy", "none", "-optimize", "-restart", f"{mcus}B")


class Scans(NamedTuple):
    """A progressive JPEG taken apart: what stands before its scans, and each scan with the tables before it."""

    head: bytes
    scans: list[bytes]

    def joined(self, *order: int) -> bytes:
        """The file with these of its scans."""
        return b"".join([self.head, *(self.scans[number] for number in order), jp.EOI])


def taken_apart(data: bytes) -> Scans:
    """The parts of a file that has Huffman tables in front of its scans."""
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
    """A scan of a crafted file: its fields in the header, and its code.

    symbols: each a Huffman symbol (None for bits alone) with the bits that follow, for example (0x21, "1"); None for a
        restart marker.
    """

    first: int
    last: int
    high: int
    low: int
    symbols: Sequence[tuple[int | None, str] | None]


def crafted_scans(scans: Sequence[Scan], *, blocks: int, rows: int = 1, restart: int = 0, code_bits: int = 8) -> bytes:
    """A grey JPEG of these scans, `blocks` wide and `rows` of them high; its Huffman codes have `code_bits` bits."""
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
            parts.append(jp.coded(text))
            parts.append(bytes([0xFF, 0xD0 + restarts % 8]))
            text, restarts = "", restarts + 1
        parts.pop()  # the marker after the last segment
    return b"".join([*parts, jp.EOI])


def progressive_noise(quality: int) -> bytes:
    """A file whose scans do not fit the decoder's buffer at once."""
    noise = np.random.default_rng(quality).integers(0, 256, (96, 120, 3), np.uint8)
    return jpeg(noise, quality=quality, progressive=True, subsampling=2)


def progressive_corpus() -> list[bytes]:
    """Long runs of ends, blocks of which all coefficients are known, and images that claim to be larger."""
    dc, ones = Scan(0, 0, 0, 0, [(0, "")] * 2000), [(0x01, "1")] * 63
    runs = crafted_scans([dc, Scan(1, 63, 0, 0, [(0xA0, f"{2000 - 1024:010b}")])], blocks=2000, code_bits=1)
    first = Scan(1, 63, 0, 1, [*ones * 7, (0, "")])
    second = Scan(1, 63, 1, 0, [(0x30, "000"), (None, "10" * 220 + "1")])
    known = crafted_scans([Scan(0, 0, 0, 0, [(0, "")] * 8), first, second], blocks=8)
    return [runs, jp.with_frame(runs, size=(6000, 1000)), known, jp.with_frame(known, size=(2000, 2000))]
