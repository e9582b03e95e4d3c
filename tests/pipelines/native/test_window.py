"""Windows of whole files, decoded by the native library: bit for bit the pixels of libjpeg."""

from __future__ import annotations

import ctypes
import random
from functools import cache

import numpy as np
import pytest
import simplejpeg
from jpeg_samples import SAMPLINGS, stoppable
from native_windows import file_window, variant
from odd_images import jpeg, luma, textured

from penstock.pipelines.image_types import Window

KINDS = ("444", "422", "420", "440", "grey")
SIZES = (
    *((side, 48) for side in (*range(1, 19), 31, 33)),
    *((48, side) for side in (*range(1, 19), 31, 33)),
    *((n, n) for n in range(1, 19)),
    *((1, 3000), (3000, 1), (2, 3000), (3000, 2), (65, 129), (129, 65)),
)


@pytest.fixture(params=[True, False], ids=["avx2", "plain"])
def library(native: ctypes.CDLL, request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """The library, once with AVX2 and once without."""
    with variant(native, request.param):
        yield native


@cache
def scene(kind: str, height: int, width: int, quality: int = 90) -> tuple[bytes, np.ndarray]:
    """A file and its pixels."""
    pixels = np.ascontiguousarray(textured(max(height, 48), max(width, 48))[:height, :width])
    if kind == "grey":
        data = jpeg(luma(pixels)[..., 0], quality=quality)
    else:
        data = simplejpeg.encode_jpeg(pixels, quality, "RGB", kind)
    return data, simplejpeg.decode_jpeg(data, "RGB", strict=True)


def windows(height: int, width: int, number: int, rng: random.Random) -> list[Window]:
    """The whole, each corner, and `number` windows of any size."""
    small = min(width, 5), min(height, 3)
    found = [(0, 0, width, height)]
    found += [(x, y, *small) for x in (0, width - small[0]) for y in (0, height - small[1])]
    for _ in range(number):
        w, h = rng.randint(1, width), rng.randint(1, height)
        found.append((rng.randint(0, width - w), rng.randint(0, height - h), w, h))
    return found


def check(native: ctypes.CDLL, data: bytes, pixels: np.ndarray, number: int, seed: int) -> None:
    """All windows equal those of `pixels`."""
    for window in windows(*pixels.shape[:2], number, random.Random(seed)):
        x, y, w, h = window
        found = file_window(native, data, window)
        assert found is not None, window
        assert np.array_equal(found, pixels[y : y + h, x : x + w]), window


@pytest.mark.parametrize("kind", KINDS)
def test_every_size(library: ctypes.CDLL, kind: str) -> None:
    for height, width in SIZES:
        check(library, *scene(kind, height, width), number=4, seed=height * width)


@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_windows(library: ctypes.CDLL, kind: str) -> None:
    check(library, *scene(kind, 133, 181), number=1500, seed=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quality", [1, 10, 50, 75, 98, 100])
def test_every_quality(library: ctypes.CDLL, kind: str, quality: int) -> None:
    check(library, *scene(kind, 70, 91, quality), number=12, seed=quality)


@pytest.mark.parametrize("name", [name for name in stoppable() if not name.startswith("411")])
def test_samples_of_every_kind(library: ctypes.CDLL, name: str) -> None:
    data = stoppable()[name]
    check(library, data, simplejpeg.decode_jpeg(data, "RGB", strict=True), number=20, seed=3)


@pytest.mark.parametrize("quality", [60, 100])
def test_noise_and_hard_edges(library: ctypes.CDLL, quality: int) -> None:
    rng = np.random.default_rng(4)
    noise = rng.integers(0, 256, (80, 120, 3), np.uint8)
    edges = (rng.integers(0, 2, (80, 120, 1)) * np.full(3, 255)).astype(np.uint8)
    flat = np.full((80, 120, 3), 77, np.uint8)
    for pixels in (noise, edges, flat):
        for kind in KINDS[:4]:
            data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", kind)
            check(library, data, simplejpeg.decode_jpeg(data, "RGB", strict=True), number=6, seed=quality)


def test_what_is_not_taken(native: ctypes.CDLL) -> None:
    data, _ = scene("420", 48, 48)
    outside = [(0, 0, 0, 1), (0, 0, 1, 0), (-1, 0, 4, 4), (0, -1, 4, 4), (40, 0, 9, 9), (0, 40, 9, 9), (2**30, 0, 1, 1)]
    for window in outside:
        assert file_window(native, data, window) is None, window
    for sampling in set(SAMPLINGS) - set(KINDS):
        assert file_window(native, scene(sampling, 48, 48)[0], (0, 0, 8, 8)) is None
    assert file_window(native, jpeg(textured(48, 48), progressive=True), (0, 0, 8, 8)) is None
