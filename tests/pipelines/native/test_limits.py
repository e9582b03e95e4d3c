"""Values at the limits of the native library, and one beyond: equal to libjpeg's, or left to Python."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import simplejpeg
from crafted_jpegs import craft, longest_mcus, overflow_dc
from jpeg_coefficients import read_jpeg
from native_windows import file_window
from progressive_jpegs import Scan, crafted_scans

from penstock.pipelines.image_types import Window
from penstock.pipelines.native.recode import NativeRecoder

FOURS = {0: 4}  # a step of 4 for DC: 2048 and -2048 are the first values beyond 512 levels
BLOCK: Window = (0, 0, 8, 8)
LAST: Window = (312, 0, 8, 8)
# File, window, whether it is decoded, number of MCUs, whether it is re-encoded.
LIMITS: dict[str, tuple[bytes, Window, bool, int, bool]] = {
    "AC of 10 bits": (craft([{5: 1023}, {0: 9}]), BLOCK, True, 2, True),
    "AC of 11 bits": (craft([{5: 1024}, {0: 9}]), BLOCK, False, 2, False),
    "AC of 11 bits, not wanted": (craft([{5: 1024}, {0: 9}]), (8, 0, 8, 8), False, 2, False),
    "AC of 15 bits in few": (craft([{5: 1 << 14}], code_bits=2), BLOCK, False, 1, False),
    "end of a band": (craft([{0: 9, 1: 3}], end=[(0x50, "")]), BLOCK, False, 1, False),
    "a symbol that is none, and seventeen places more, not wanted": (
        # passed over together they would look like an end of the block
        craft([{0: 9, 63: 1}, {0: 9, 49: 1}], code_bits=3, end=[(0x50, ""), (0xF0, ""), (0x01, "1")]),
        BLOCK,
        False,
        2,
        False,
    ),
    "sixteen places beyond the block and a symbol that is none": (
        craft([{0: 9, 49: 1}, {0: 9, 63: 1}], code_bits=3, end=[(0xF0, ""), (0x50, "")]),
        BLOCK,
        False,
        2,
        False,
    ),
    "the same, not wanted": (
        craft([{0: 9, 63: 1}, {0: 9, 49: 1}], code_bits=3, end=[(0xF0, ""), (0x50, "")]),
        BLOCK,
        False,
        2,
        False,
    ),
    "a run beyond the block": (craft([{0: 9, 60: 1, 70: 1}]), BLOCK, False, 1, False),
    "DC of 11 bits": (craft([{0: 2047}, {0: 9}]), BLOCK, True, 2, True),
    "DC of 12 bits, not wanted": (craft([{0: 2048}, {0: 9}]), (8, 0, 8, 8), False, 2, False),
    "DC of 16 bits": (overflow_dc(32767), LAST, True, 40, True),
    "DC beyond 16 bits": (overflow_dc(32768), LAST, False, 40, False),
    "511 levels": (craft([{0: 1022, 63: 1}], steps=FOURS), BLOCK, True, 1, True),
    "512 levels": (craft([{0: 1023, 63: 1}], steps=FOURS), BLOCK, False, 1, True),
    "-512 levels": (craft([{0: -1023, 63: 1}], steps=FOURS), BLOCK, True, 1, True),
    "-512 levels, beyond the first pass": (craft([{0: -1024, 63: 1}], steps=FOURS), BLOCK, False, 1, True),
    "-528 levels": (craft([{0: -1023, 1: 100}], steps=FOURS), BLOCK, False, 1, True),
    "511 levels of DC": (craft([{0: 1022}], steps=FOURS), BLOCK, True, 1, True),
    "512 levels of DC": (craft([{0: 1023}], steps=FOURS), BLOCK, False, 1, True),
    "-512 levels of DC": (craft([{0: -1025}], steps=FOURS), BLOCK, True, 1, True),
    "-513 levels of DC": (craft([{0: -1026}], steps=FOURS), BLOCK, False, 1, True),
    "a product beyond 32 bits": (craft([{1: 512}], steps={1: 1024}), BLOCK, False, 1, True),
    "a negative one": (craft([{1: -512}], steps={1: 1024}), BLOCK, False, 1, True),
    "longest MCUs": (longest_mcus(), (208, 0, 16, 16), True, 14, True),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits(library: ctypes.CDLL, name: str) -> None:
    data, window, decoded, mcus, recoded = LIMITS[name]
    x, y, w, h = window
    found = file_window(library, data, window)
    copy = NativeRecoder(library).recode(data, mcus, 1)
    assert (found is not None) == decoded
    if found is not None:
        assert np.array_equal(found, simplejpeg.decode_jpeg(data, "RGB", strict=True)[y : y + h, x : x + w])
    assert (copy is not None) == recoded
    if copy is not None:
        assert read_jpeg(copy.data).image == read_jpeg(data).image


def test_a_segment_does_not_begin_with_more_than_11_bits(native: ctypes.CDLL) -> None:
    recoder = NativeRecoder(native)
    scans = [Scan(0, 0, 0, 0, [(11, "1" * 11), (1, "1"), (11, "0" * 11)]), Scan(1, 63, 0, 0, [(0, "")] * 3)]
    for each in (craft([{0: 2047}, {0: 2048}, {0: 1}]), crafted_scans(scans, blocks=3)):
        assert recoder.recode(each, 3, 1) is not None
        assert recoder.recode(each, 1, 3) is None


def test_the_last_byte_of_a_segment_is_filled_with_ones(native: ctypes.CDLL) -> None:
    copy = NativeRecoder(native).recode(craft([{}, {}], code_bits=1), 1, 2)
    assert copy is not None
    assert copy.data.endswith(b"\x3f\xff\xd0\x3f\xff\xd9")  # two symbols of one bit each
