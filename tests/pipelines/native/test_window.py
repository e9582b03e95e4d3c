"""Windows of whole files, decoded by the native library: bit for bit the pixels of libjpeg."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import jpeg_parts as jp
import numpy as np
import pytest
import simplejpeg
from jpeg_parts import Component
from jpeg_samples import stoppable
from native_windows import check_windows, file_window, scene
from odd_images import JFIF, textured

KINDS = ("444", "422", "420", "440", "411", "grey")
SIZES = (
    *((side, 48) for side in (1, 2, 7, 8, 9, 15, 16, 17, 31, 33)),
    *((48, side) for side in (1, 2, 7, 8, 9, 15, 16, 17, 31, 33)),
    *((n, n) for n in range(3, 19)),
    *((1, 3000), (3000, 1), (2, 3000), (3000, 2), (65, 129), (129, 65)),
)


def contents() -> dict[str, np.ndarray]:
    """Noise, hard edges, and one colour."""
    rng = np.random.default_rng(4)
    noise = rng.integers(0, 256, (80, 120, 3), np.uint8)
    edges = np.repeat(rng.integers(0, 2, (80, 120, 1), np.uint8) * 255, 3, axis=2)
    return {"noise": noise, "edges": edges, "flat": np.full((80, 120, 3), 77, np.uint8)}


def images_of(kind: str) -> Iterator[tuple[bytes, int]]:
    """Yield files of one sampling, and the number of windows to draw: every size, every quality, difficult contents."""
    for height, width in SIZES:
        yield scene(kind, height, width), 4
    yield scene(kind, 133, 181), 400
    for quality in (1, 10, 50, 75, 98, 100):
        yield scene(kind, 70, 91, quality), 12
    for pixels in contents().values():
        for quality in (60, 100):
            if kind != "grey":
                yield simplejpeg.encode_jpeg(pixels, quality, "RGB", kind), 6


@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_every_sampling(library: ctypes.CDLL, kind: str) -> None:
    for seed, (data, number) in enumerate(images_of(kind)):
        check_windows(library, data, number, seed)


@pytest.mark.parametrize("name", stoppable())
def test_samples_of_every_kind(library: ctypes.CDLL, name: str) -> None:
    check_windows(library, stoppable()[name], number=20, seed=3)


def test_unsupported_windows_and_files(native: ctypes.CDLL) -> None:
    data = scene("420", 48, 48)
    outside = [(0, 0, 0, 1), (0, 0, 1, 0), (-1, 0, 4, 4), (0, -1, 4, 4), (40, 0, 9, 9), (0, 40, 9, 9), (2**30, 0, 1, 1)]
    for window in outside:
        assert file_window(native, data, window) is None, window
    for factors in ((4, 2), (1, 4), (3, 1)):
        planes = jp.ycc(textured(48, 48))
        parts = [Component(p, i, *f) for i, (p, f) in enumerate(zip(planes, (factors, (1, 1), (1, 1)), strict=True))]
        assert file_window(native, jp.encode(parts, head=JFIF), (0, 0, 8, 8)) is None
