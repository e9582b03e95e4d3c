"""Huffman tables that a thread keeps: each image is decoded as by a thread that has decoded nothing before."""

from __future__ import annotations

import ctypes
import random

import native_windows
import numpy as np
import pytest
from native_windows import file_window
from odd_images import jpeg, luma, textured

WINDOW = (3, 5, 40, 30)
PHOTO = textured(48, 64)


def damage_tables(data: bytes, number: int, rng: random.Random) -> list[bytes]:
    """Return copies of a JPEG with one byte of its Huffman tables changed."""
    begin, end = data.index(b"\xff\xc4") + 4, data.index(b"\xff\xda")
    places = [rng.randrange(begin, end) for _ in range(number)]
    return [data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :] for at in places]


def files(rng: random.Random) -> list[bytes]:
    """Return colour and grey JPEGs with the usual and with optimal tables, damaged ones, and progressive ones."""
    made = []
    for quality in (60, 80, 95):
        for optimize in (False, True):
            made.append(jpeg(PHOTO, quality=quality, optimize=optimize))
            made.append(jpeg(luma(PHOTO)[..., 0], quality=quality, optimize=optimize))
    damaged = [bad for data in made for bad in damage_tables(data, 12, rng)]
    return [*made, *damaged, jpeg(PHOTO, progressive=True)]


@pytest.mark.parametrize("seed", range(2))
def test_no_table_outlives_its_image(native: ctypes.CDLL, seed: int) -> None:
    rng = random.Random(seed)
    every, alone = files(rng), []
    for data in every:
        native_windows.stage_of.cache_clear()
        alone.append(file_window(native, data, WINDOW))
    order = rng.choices(range(len(every)), k=3 * len(every))
    together = [file_window(native, every[at], WINDOW) for at in order]
    assert 0.1 < sum(pixels is None for pixels in alone) / len(alone) < 0.9
    for at, pixels in zip(order, together, strict=True):
        expected = alone[at]
        assert (pixels is None) == (expected is None)
        assert pixels is None or np.array_equal(pixels, expected)
