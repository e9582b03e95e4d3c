"""Windows of whole files, decoded by the native library: bit for bit the pixels of libjpeg."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
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
def scene(kind: str, height: int, width: int, quality: int = 90) -> bytes:
    """A file of this sampling."""
    pixels = np.ascontiguousarray(textured(max(height, 48), max(width, 48))[:height, :width])
    if kind == "grey":
        return jpeg(luma(pixels)[..., 0], quality=quality)
    return simplejpeg.encode_jpeg(pixels, quality, "RGB", kind)


def windows(height: int, width: int, number: int, rng: random.Random) -> list[Window]:
    """The whole, each corner, and `number` windows of any size."""
    small = min(width, 5), min(height, 3)
    found = [(0, 0, width, height)]
    found += [(x, y, *small) for x in (0, width - small[0]) for y in (0, height - small[1])]
    for _ in range(number):
        w, h = rng.randint(1, width), rng.randint(1, height)
        found.append((rng.randint(0, width - w), rng.randint(0, height - h), w, h))
    return found


def check(native: ctypes.CDLL, data: bytes, number: int, seed: int) -> None:
    """All windows equal those of libjpeg's pixels."""
    pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True)
    for window in windows(*pixels.shape[:2], number, random.Random(seed)):
        x, y, w, h = window
        found = file_window(native, data, window)
        assert found is not None, window
        assert np.array_equal(found, pixels[y : y + h, x : x + w]), window


def contents() -> dict[str, np.ndarray]:
    """Noise, hard edges, and one colour."""
    rng = np.random.default_rng(4)
    noise = rng.integers(0, 256, (80, 120, 3), np.uint8)
    edges = np.repeat(rng.integers(0, 2, (80, 120, 1), np.uint8) * 255, 3, axis=2)
    return {"noise": noise, "edges": edges, "flat": np.full((80, 120, 3), 77, np.uint8)}


def images_of(kind: str) -> Iterator[tuple[bytes, int]]:
    """Files of one sampling, and how many windows of each to draw: every size, every quality, hard contents."""
    for height, width in SIZES:
        yield scene(kind, height, width), 4
    yield scene(kind, 133, 181), 1500
    for quality in (1, 10, 50, 75, 98, 100):
        yield scene(kind, 70, 91, quality), 12
    for pixels in contents().values():
        for quality in (60, 100):
            if kind != "grey":
                yield simplejpeg.encode_jpeg(pixels, quality, "RGB", kind), 6


@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_every_sampling(library: ctypes.CDLL, kind: str) -> None:
    for seed, (data, number) in enumerate(images_of(kind)):
        check(library, data, number, seed)


@pytest.mark.parametrize("name", [name for name in stoppable() if not name.startswith("411")])
def test_samples_of_every_kind(library: ctypes.CDLL, name: str) -> None:
    check(library, stoppable()[name], number=20, seed=3)


def test_unsupported_windows_and_files(native: ctypes.CDLL) -> None:
    data = scene("420", 48, 48)
    outside = [(0, 0, 0, 1), (0, 0, 1, 0), (-1, 0, 4, 4), (0, -1, 4, 4), (40, 0, 9, 9), (0, 40, 9, 9), (2**30, 0, 1, 1)]
    for window in outside:
        assert file_window(native, data, window) is None, window
    for sampling in set(SAMPLINGS) - set(KINDS):
        assert file_window(native, scene(sampling, 48, 48), (0, 0, 8, 8)) is None
    assert file_window(native, jpeg(textured(48, 48), progressive=True), (0, 0, 8, 8)) is None
