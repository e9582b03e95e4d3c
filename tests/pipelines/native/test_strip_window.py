"""Windows of restart strips, decoded by the native library: equal to the whole image."""

from __future__ import annotations

import ctypes
import random
from functools import cache

import native_tests
import numpy as np
import pytest
import simplejpeg
from jpeg_samples import SAMPLINGS
from native_windows import Scan, scene, strips_window, variant

from penstock.pipelines.image_types import Window
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.jpeg.strips import StripGeometry, mcu_size, segment_ends
from penstock.pipelines.native.recode import NativeRecoder

KINDS = (*SAMPLINGS, "grey")
# Height, width, MCUs of 16 pixels.
SEGMENTS = (
    *((241, 160, 2), (241, 163, 1), (64, 96, 3), (70, 33, 1), (48, 64, 4), (375, 500, 1)),
    *((17, 31, 1), (8, 8, 1), (1, 1, 1), (1, 3000, 1), (3000, 1, 1)),
)


class Strips:
    """A JPEG with a restart marker after every `mcus` MCUs, and where its segments end."""

    def __init__(self, kind: str, height: int, width: int, mcus: int) -> None:
        source = scene(kind, height, width)
        self.geometry = StripGeometry(width, height, *mcu_size(parse_header(source)), mcus)
        segments = self.geometry.rows * self.geometry.segments
        made = NativeRecoder(native_tests.native()).recode(source, mcus, segments)
        assert made is not None
        data, start = made.data, parse_header(made.data).scan_offset
        self.header, self.scan = data[:start], data[start:-2]
        self.pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True)
        ends = segment_ends(np.frombuffer(self.scan, np.uint8)).tolist()
        self.ends = [*ends, len(self.scan)]  # of all segments, their markers included
        assert len(self.ends) == segments

    def cut(self, window: Window, strip_rows: int) -> tuple[bytes, int, bool]:
        """Return bytes of the strips that the window needs, their first row of MCUs, and whether they reach the end."""
        high, segments = self.geometry.mcu_height, self.geometry.segments
        margin = high > 8  # upsampling mixes the pixels above and below
        top, bottom = max(0, window[1] - margin), window[1] + window[3] + margin
        first = top // high // strip_rows * strip_rows
        last = min(-(-bottom // (high * strip_rows)) * strip_rows, self.geometry.rows)
        begin = self.ends[first * segments - 1] if first else 0
        return self.scan[begin : self.ends[last * segments - 1]], first, last == self.geometry.rows


@cache
def strips(kind: str, height: int, width: int, mcus: int) -> Strips:
    """One of them."""
    return Strips(kind, height, width, mcus)


def decoded(native: ctypes.CDLL, image: Strips, window: Window, coded: bytes, first: int, **changes: int):  # type: ignore[no-untyped-def]
    """Return the pixels that the library decodes from strips."""
    fields = {"first_row": first, "segment_mcus": image.geometry.segment_mcus, "at_end": 1, "whole_file": 0, **changes}
    return strips_window(native, image.header, Scan(data=coded, size=len(coded), **fields), window)


def random_window(draw: random.Random, width: int, height: int) -> Window:
    """Of any size, some at an edge."""
    w, h = draw.randint(1, width), draw.randint(1, height)
    return draw.choice((0, width - w, draw.randint(0, width - w))), draw.choice((0, draw.randint(0, height - h))), w, h


@pytest.mark.parametrize("kind", KINDS)
def test_windows_equal_the_whole_image(native: ctypes.CDLL, kind: str) -> None:
    draw = random.Random(kind)
    for number in range(660):  # 60 of each image
        height, width, mcus = SEGMENTS[number % len(SEGMENTS)]
        image = strips(kind, height, width, 1 if kind in ("444", "440", "411", "grey") else mcus)
        x, y, w, h = window = random_window(draw, width, height)
        coded, first, at_end = image.cut(window, draw.choice((1, 2, 5)))
        expected = image.pixels[y : y + h, x : x + w]
        with variant(native, avx2=bool(number & 1)):
            found = decoded(native, image, window, coded, first, at_end=int(at_end))
        assert found is not None, (window, height, width)
        assert np.array_equal(found, expected), (window, height, width)


def test_the_count_of_markers_matters_but_not_their_numbers(native: ctypes.CDLL) -> None:
    image, window = strips("420", 241, 160, 2), (0, 100, 160, 141)
    coded, first, _ = image.cut(window, 1)
    renumbered = bytearray(coded)
    ends = segment_ends(np.frombuffer(coded, np.uint8))
    for end in ends:
        renumbered[end - 1] = 0xD3
    found = decoded(native, image, window, bytes(renumbered), first)
    assert found is not None
    assert np.array_equal(found, image.pixels[100:])
    one_less = coded[: ends[3]] + coded[ends[4] :]
    one_more = coded[: ends[3]] + b"\xff\xd0" + coded[ends[3] :]
    for bad in (one_less, one_more, coded + b"\xff\xd0", coded[: ends[-1]], coded[: ends[-1] - 2], b""):
        assert decoded(native, image, window, bad, first) is None
    assert decoded(native, image, window, coded, first, at_end=0) is None


def test_only_damage_in_needed_segments_is_detected(native: ctypes.CDLL) -> None:
    image = strips("420", 241, 160, 2)
    window = (70, 0, 20, 241)  # in the third segment of each row
    ends = [0, *segment_ends(np.frombuffer(image.scan, np.uint8)).tolist()]
    expected = image.pixels[:, 70:90]
    for segment, harmless in ((0, True), (2, False), (5, True), (7, False)):
        at = ends[segment]
        for damage in (b"\xff\xc0", b"\xff\xd9", b"\xff\x01"):
            found = decoded(native, image, window, image.scan[: at + 3] + damage + image.scan[at + 5 :], 0)
            assert (found is not None) == harmless
            assert found is None or np.array_equal(found, expected)
        longer = image.scan[: ends[segment + 1] - 2] + b"\0\0" + image.scan[ends[segment + 1] - 2 :]
        shorter = image.scan[: ends[segment + 1] - 4] + image.scan[ends[segment + 1] - 2 :]
        filled = image.scan[: ends[segment + 1] - 2] + b"\xff" + image.scan[ends[segment + 1] - 2 :]  # Python's to take
        for damaged in (longer, shorter, filled):
            assert (decoded(native, image, window, damaged, 0) is not None) == harmless


@pytest.mark.parametrize(
    "changes", [{"segment_mcus": 0}, {"segment_mcus": 5}, {"segment_mcus": 3}, {"first_row": -1}, {"first_row": 9}]
)
def test_geometry_that_differs_from_the_header_is_unsupported(native: ctypes.CDLL, changes: dict[str, int]) -> None:
    image = strips("420", 241, 160, 2)
    assert decoded(native, image, (0, 0, 9, 9), image.scan, 0) is not None
    assert decoded(native, image, (0, 0, 9, 9), image.scan, **{"first": 0, **changes}) is None
    uneven = strips("420", 241, 163, 1)
    header = uneven.header.replace(b"\xff\xdd\0\4\0\1", b"\xff\xdd\0\4\0\3")
    scan = Scan(data=uneven.scan, size=len(uneven.scan), segment_mcus=3, at_end=1)
    assert strips_window(native, header, scan, (0, 0, 9, 9)) is None
