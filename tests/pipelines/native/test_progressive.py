"""Windows of progressive JPEGs, decoded by the native library: bit for bit libjpeg's pixels, or left to Python."""

from __future__ import annotations

import ctypes
import random

import jpeg_parts as jp
import numpy as np
import pytest
import simplejpeg
from jpeg_samples import PILLOW_SAMPLINGS, unstoppable
from native_windows import check_windows, file_window, info
from odd_images import jpeg
from progressive_jpegs import Scan, crafted_scans, progressive, split_scans
from stored_jpegs import stored_jpegs

KINDS = (*PILLOW_SAMPLINGS, "grey")
SIZES = (
    *((n, n) for n in (1, 2, 7, 8, 9, 15, 16, 17, 31, 33)),
    *((1, 40), (40, 1), (3, 65), (65, 3), (61, 83), (130, 40), (64, 96)),
)


def is_taken(native: ctypes.CDLL, data: bytes) -> bool:
    """Whether the library decodes the whole file; its pixels are then libjpeg's, which has nothing to warn about."""
    found = info(native, data)
    pixels = None if found is None else file_window(native, data, (0, 0, found.width, found.height))
    if pixels is not None:
        assert np.array_equal(pixels, simplejpeg.decode_jpeg(data, "RGB", strict=True))
    return pixels is not None


# ---- files as encoders write them


@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_every_sampling_and_size(library: ctypes.CDLL, kind: str) -> None:
    for seed, (height, width) in enumerate(SIZES):
        check_windows(library, progressive(kind, height, width), 4, seed)
        interval = {("restart_marker_rows", "restart_marker_blocks")[seed % 2]: seed % 5 + 1}
        check_windows(library, progressive(kind, height, width, **interval), 2, seed)
    check_windows(library, progressive(kind, 133, 181), 150, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_quality(library: ctypes.CDLL, kind: str) -> None:
    for quality in (1, 10, 50, 95, 100):
        check_windows(library, progressive(kind, 70, 91, quality), 10, quality)


@pytest.mark.parametrize("name", [name for name in stored_jpegs() if not name.startswith(("baseline", "arithmetic"))])
def test_other_scripts_and_samplings(library: ctypes.CDLL, name: str) -> None:
    data = stored_jpegs()[name]
    if name.startswith("33 scans"):  # of an image of max_pixels Python accepts 32
        assert not is_taken(library, data)
        return
    check_windows(library, data, 20, 1)


@pytest.mark.parametrize("name", [name for name in unstoppable() if name.startswith("progressive")])
def test_samples_of_every_kind(library: ctypes.CDLL, name: str) -> None:
    check_windows(library, unstoppable()[name], 4, 1)


def test_noise_fills_the_buffer_of_bits(library: ctypes.CDLL) -> None:
    noise = np.random.default_rng(4).integers(0, 256, (110, 150, 3), np.uint8)
    for kind in ("444", "420"):
        data = jpeg(noise, quality=100, subsampling=PILLOW_SAMPLINGS[kind], progressive=True)
        check_windows(library, data, 6, 1)


# ---- the order of scans

DATA = progressive("420", 61, 83)
PARTS = split_scans(DATA)
# libjpeg's scans: DC; Y 1-5, Cr, Cb, Y 6-63 all but two bits; Y to one bit; DC, Cr, Cb and Y to the last
ALL = tuple(range(10))


def test_scans_taken_apart_are_the_file() -> None:
    assert PARTS.joined(*ALL) == DATA


def test_scans_in_another_possible_order(library: ctypes.CDLL) -> None:
    for order in ((0, 4, 3, 2, 1, 5, 6, 7, 8, 9), (0, 6, 1, 4, 5, 9, 2, 3, 8, 7)):
        check_windows(library, PARTS.joined(*order), 4, 1)


@pytest.mark.parametrize(
    "order",
    [
        *(tuple(n for n in ALL if n != left_out) for left_out in ALL),
        (0,),
        (*ALL, 9),
        (0, *ALL),
        (1, 0, *ALL[2:]),
        (0, 1, 4, 9, 2, 3, 6, 7, 8, 5),
        (*ALL, 1),
    ],
)
def test_missing_repeated_and_early_scans_are_left_to_python(native: ctypes.CDLL, order: tuple[int, ...]) -> None:
    assert is_taken(native, DATA)
    assert not is_taken(native, PARTS.joined(*order))


def test_a_band_is_of_one_component(native: ctypes.CDLL) -> None:
    """Cb and Cr in one scan, with the data of one of them: then all of both would seem to be known."""
    parts = split_scans(stored_jpegs()["bands alone/420_61x83.jpg"])
    scan = parts.scans[1]
    at = scan.index(b"\xff\xda")
    assert scan[at + 4 : at + 6] == b"\1\3"
    table, band = scan[at + 6], scan[at + 7 : at + 10]
    both = scan[:at] + jp.segment(jp.SOS, bytes([2, 2, table, 3, table]) + band) + scan[at + 10 :]
    assert is_taken(native, parts.joined(*range(5)))
    assert not is_taken(native, b"".join([parts.head, parts.scans[0], both, parts.scans[2], parts.scans[4], jp.EOI]))


def test_markers_between_scans(native: ctypes.CDLL) -> None:
    def with_marker(extra: bytes) -> bytes:
        return b"".join([PARTS.head, *PARTS.scans[:5], extra, *PARTS.scans[5:], jp.EOI])

    assert is_taken(native, with_marker(b""))
    assert is_taken(native, with_marker(jp.segment(jp.DHT, b"\x13\1" + bytes(15) + b"\1")))  # a table of no use
    assert is_taken(native, with_marker(jp.segment(jp.DRI, b"\0\0")))
    comment, frame = jp.segment(jp.COM, b""), DATA[DATA.index(b"\xff\xc2") :][:19]
    quantiser = DATA[DATA.index(b"\xff\xdb") :][:69]
    table = jp.segment(jp.DHT, b"\x13\3" + bytes(16))
    many = jp.segment(jp.DRI, b"\0\0") * 20
    for extra in (comment, frame, quantiser, table, many, b"\xff", b"\0", b"\xff\xd0", b"\xff\xd8", b"\xff\xda\0\2"):
        assert not is_taken(native, with_marker(extra)), extra
    assert is_taken(native, DATA + b"behind the end" + DATA)


def test_restart_intervals_that_change_between_scans(library: ctypes.CDLL) -> None:
    with_restarts = split_scans(progressive("420", 61, 83, restart_marker_blocks=3))
    scans = [PARTS.scans[0]]
    for number in ALL[1:]:
        own, interval = (with_restarts, b"\0\3") if number % 2 else (PARTS, b"\0\0")
        scans.append(jp.segment(jp.DRI, interval) + own.scans[number])
    check_windows(library, b"".join([PARTS.head, *scans, jp.EOI]), 6, 1)


def test_a_scan_must_belong_to_the_frame(native: ctypes.CDLL) -> None:
    at = DATA.index(b"\xff\xda")
    assert DATA[at : at + 14] == b"\xff\xda\0\x0c\3\1\0\2\x10\3\x10\0\0\1"
    changes = {6: 0x40, 5: 9, 7: 1, 11: 1, 12: 1, 13: 14, 4: 2}
    for offset, value in changes.items():
        changed = bytearray(DATA)
        changed[at + offset] = value
        assert not is_taken(native, bytes(changed)), offset


# ---- given symbols

DC = Scan(0, 0, 0, 0, [(0, "")] * 8)
NO_MORE = (0x30, "000")  # the end of eight blocks
ONES = [(0x01, "1")] * 63  # all AC coefficients of a block
SEVEN = (0x20, "11")  # the end of seven blocks
CORRECTIONS = "".join(random.Random(1).choice("01") for _ in range(63))
ADDED = [(None, "10101011")]  # a bit for each block's DC


def many_bits_later(low: int) -> list[Scan]:
    """Scans of AC coefficients that are all 0, of which `low` bits come one by one."""
    return [Scan(1, 63, 0, low, [NO_MORE]), *(Scan(1, 63, k, k - 1, [NO_MORE]) for k in range(low, 0, -1))]


# Scans of eight blocks, and whether they are decoded.
CRAFTED: dict[str, tuple[list[Scan], bool]] = {
    "an end of all blocks": ([DC, Scan(1, 63, 0, 0, [NO_MORE])], True),
    "an end of one block more": ([DC, Scan(1, 63, 0, 0, [(0x30, "001")])], False),
    "no end": ([DC, Scan(1, 63, 0, 0, [SEVEN])], False),
    "sixteen zeros to the end": ([DC, Scan(1, 16, 0, 0, [(0xF0, ""), SEVEN]), Scan(17, 63, 0, 0, [NO_MORE])], True),
    "sixteen zeros too many": ([DC, Scan(1, 15, 0, 0, [(0xF0, ""), SEVEN]), Scan(16, 63, 0, 0, [NO_MORE])], False),
    "the last coefficient": ([DC, Scan(1, 5, 0, 0, [(0x41, "1"), SEVEN]), Scan(6, 63, 0, 0, [NO_MORE])], True),
    "one beyond it": ([DC, Scan(1, 5, 0, 0, [(0x51, "1"), SEVEN]), Scan(6, 63, 0, 0, [NO_MORE])], False),
    "AC of 10 bits": ([DC, Scan(1, 63, 0, 0, [(0x0A, "1" * 10), (0, ""), SEVEN])], True),
    "AC of 11 bits": ([DC, Scan(1, 63, 0, 0, [(0x0B, "1" * 11), (0, ""), SEVEN])], False),
    "AC of 10 bits and one": (
        [DC, Scan(1, 63, 0, 1, [(0x0A, "1" * 10), (0, ""), SEVEN]), Scan(1, 63, 1, 0, [(0, "0"), SEVEN])],
        False,
    ),
    "AC of 9 bits and one": (
        [DC, Scan(1, 63, 0, 1, [(0x09, "0" * 9), (0, ""), SEVEN]), Scan(1, 63, 1, 0, [(0, "1"), SEVEN])],
        True,
    ),
    "DC of 11 bits": ([Scan(0, 0, 0, 0, [(11, "0" * 11), *[(0, "")] * 7]), Scan(1, 63, 0, 0, [NO_MORE])], True),
    "DC of 10 bits": ([Scan(0, 0, 0, 0, [(10, "0" * 10), *[(0, "")] * 7]), Scan(1, 63, 0, 0, [NO_MORE])], True),
    "DC of 12 bits": ([Scan(0, 0, 0, 0, [(12, "0" * 12), *[(0, "")] * 7]), Scan(1, 63, 0, 0, [NO_MORE])], False),
    "DC of 9 bits and one": (
        [Scan(0, 0, 0, 1, [(9, "1" * 9), *[(0, "")] * 7]), Scan(1, 63, 0, 0, [NO_MORE]), Scan(0, 0, 1, 0, ADDED)],
        True,
    ),
    "a bit too few for DC": (
        [Scan(0, 0, 0, 1, [(9, "1" * 9), *[(0, "")] * 7]), Scan(1, 63, 0, 0, [NO_MORE]), Scan(0, 0, 1, 0, [])],
        False,
    ),
    "a byte too many for DC": (
        [
            Scan(0, 0, 0, 1, [(9, "1" * 9), *[(0, "")] * 7]),
            Scan(1, 63, 0, 0, [NO_MORE]),
            Scan(0, 0, 1, 0, [(None, "1010101100000000")]),
        ],
        False,
    ),
    "a byte too many for AC": ([DC, Scan(1, 63, 0, 0, [NO_MORE, (None, "0" * 8)])], False),
    "63 bits for known coefficients": (
        [DC, Scan(1, 63, 0, 1, [*ONES, SEVEN]), Scan(1, 63, 1, 0, [(0x30, "000"), (None, CORRECTIONS)])],
        True,
    ),
    "63 bits for each block": (
        [DC, Scan(1, 63, 0, 1, ONES * 8), Scan(1, 63, 1, 0, [(0x30, "000"), (None, CORRECTIONS * 8)])],
        True,
    ),
    "a new coefficient among them": (
        [
            DC,
            Scan(1, 63, 0, 1, [*ONES[:20], (0xF0, ""), (0x31, "0"), (0, ""), SEVEN]),
            # six zeros, of sixteen and four, and a new one; five known before it, one known before the end
            Scan(1, 63, 1, 0, [(0x51, "1"), (None, CORRECTIONS[:20]), (0, ""), (None, "1"), SEVEN]),
        ],
        True,
    ),
    "sixteen zeros among them": (
        [
            DC,
            Scan(1, 63, 0, 1, [*ONES[:20], (0xF0, ""), (0x31, "0"), (0, ""), SEVEN]),
            Scan(1, 63, 1, 0, [(0xF0, CORRECTIONS[:20]), (0x41, "0"), (None, "1"), (0, ""), SEVEN]),
        ],
        True,
    ),
    "zeros beyond the end": (
        [
            DC,
            Scan(1, 63, 0, 1, [*ONES[:50], (0, ""), SEVEN]),
            Scan(1, 63, 1, 0, [(0xD1, "1"), (None, CORRECTIONS[:50]), SEVEN]),
        ],
        False,
    ),
    "zeros beyond the end, with bits as if they were there": (
        [
            DC,
            Scan(1, 63, 0, 1, [*ONES[:50], (0, ""), SEVEN]),
            Scan(1, 63, 1, 0, [(0xD1, "1"), (None, CORRECTIONS[:49]), SEVEN]),
        ],
        False,
    ),
    "a run far beyond the last zero": (
        [
            DC,
            Scan(1, 63, 0, 1, [(0, ""), *ONES[:62], (0, ""), (0x20, "10")]),
            # the first block, which has 63 zeros, leaves their places behind for the second, which has one
            Scan(1, 63, 1, 0, [(0x01, "1"), (0, ""), (0xB1, "1"), (0, CORRECTIONS[:50]), (0x20, "10")]),
        ],
        False,
    ),
    "a band that ends before it begins": ([DC, Scan(1, 63, 0, 0, [NO_MORE]), Scan(5, 3, 0, 0, [])], False),
    "a band beyond the last coefficient": ([DC, Scan(1, 64, 0, 0, [NO_MORE])], False),
    "DC with the first of AC": ([Scan(0, 1, 0, 0, DC.symbols), Scan(2, 63, 0, 0, [NO_MORE])], False),
    "a new coefficient of two bits": (
        [DC, Scan(1, 63, 0, 1, [NO_MORE]), Scan(1, 63, 1, 0, [(0x02, "10"), (0, ""), SEVEN])],
        False,
    ),
    "13 bits missing": ([DC, *many_bits_later(13)], True),
    "14 bits missing": ([DC, *many_bits_later(14)], False),
    "two bits at once": ([Scan(0, 0, 0, 2, DC.symbols), Scan(1, 63, 0, 0, [NO_MORE]), Scan(0, 0, 2, 0, ADDED)], False),
    "a code that is none": ([DC, Scan(1, 63, 0, 0, [(None, "11111110"), NO_MORE])], False),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_given_symbols(native: ctypes.CDLL, name: str) -> None:
    scans, decoded = CRAFTED[name]
    for code_bits in (8, 16):
        data = crafted_scans(scans, blocks=8, code_bits=code_bits)
        assert is_taken(native, data) == decoded
        if decoded:
            check_windows(native, data, 6, 1)


def test_a_run_of_ends_does_not_cross_a_restart(library: ctypes.CDLL) -> None:
    dc = Scan(0, 0, 0, 0, [*[(0, "")] * 4, None, *[(0, "")] * 4])
    for before, behind, taken in (((0x20, "00"), (0x20, "00"), True), ((0x20, "01"), (0x10, "1"), False)):
        band = Scan(1, 63, 0, 0, [before, None, behind])
        assert is_taken(library, crafted_scans([dc, band], blocks=8, restart=4)) == taken


def test_dc_beyond_16_bits(library: ctypes.CDLL) -> None:
    for rising, taken in ((16, True), (17, False)):  # of 2047 each; the window is behind them, where it is 0 again
        symbols = [*[(11, "1" * 11)] * rising, *[(11, "0" * 11)] * rising, *[(0, "")] * 6]
        band = Scan(1, 63, 0, 0, [(0x50, f"{2 * rising + 6 - 32:05b}")])
        data = crafted_scans([Scan(0, 0, 0, 0, symbols), band], blocks=2 * rising + 6)
        found = file_window(library, data, (16 * rising, 0, 16, 8))
        assert (found is not None) == taken
        assert found is None or (found == 128).all()


def test_more_coefficients_than_150_megabytes_are_left_to_python(native: ctypes.CDLL) -> None:
    wide, rows = 1100, 1100
    ends = [(0xE0, "1" * 14)] * (wide * rows // 32767) + [(0xE0, f"{wide * rows % 32767 - (1 << 14):014b}")]
    scans = [Scan(0, 0, 0, 0, [(0, "")] * (wide * rows)), Scan(1, 63, 0, 0, ends)]
    data = crafted_scans(scans, blocks=wide, rows=rows, code_bits=1)
    assert file_window(native, data, (4000, 4000, 40, 40)) is not None
    assert file_window(native, data, (0, 0, 8 * wide, 8 * rows)) is None
