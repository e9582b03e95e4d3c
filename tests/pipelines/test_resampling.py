"""Resizes by the name of their filter, compared with Pillow on random arrays of any type and number of channels."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from penstock.pipelines.image_types import INTERPOLATIONS, Interpolation
from penstock.pipelines.resampling import resize

# Largest distance in levels of uint8: Pillow has more bits of weights, and rounds between the passes too.
FAR = {"bilinear": 1, "bicubic": 2, "lanczos": 2, "box": 1, "nearest": 0}


def by_pillow(pixels: np.ndarray, size: tuple[int, int], name: Interpolation) -> np.ndarray:
    """Resize each channel, uint8 or float32: rows first, then columns, as torch does (Pillow 13 chooses the order)."""
    kernel = Image.Resampling[name.upper()]
    made = []
    for channel in np.moveaxis(pixels, 2, 0):
        across = Image.fromarray(np.ascontiguousarray(channel)).resize((size[1], channel.shape[0]), kernel)
        made.append(np.asarray(across.resize(size[::-1], kernel)))
    return np.stack(made, 2)


def drawn(rng: np.random.Generator) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return a random shape [h, w, channels], and a random size."""
    sides = np.exp(rng.uniform(0, np.log(120), 4)).astype(int).tolist()
    return (sides[0], sides[1], int(rng.choice([1, 2, 3, 4, 5, 9]))), (sides[2], sides[3])


@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_bytes_equal_pillows_within_rounding(name: Interpolation) -> None:
    rng, distances = np.random.default_rng(1), []
    for number in range(150):
        shape, size = drawn(rng)
        pixels = rng.integers(0, 256, shape).astype(np.uint8) if number % 3 else rng.choice([0, 255], shape)
        got = resize(pixels.astype(np.uint8), size, name)
        assert got.dtype == np.uint8
        distances.append(np.abs(got.astype(int) - by_pillow(pixels.astype(np.uint8), size, name)).max())
    assert max(distances) <= FAR[name]


@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_floats_and_16_bits_equal_pillows(name: Interpolation) -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        shape, size = drawn(rng)
        deep = rng.integers(0, 65536, shape).astype(np.uint16)
        expected = by_pillow(deep.astype(np.float32), size, name)
        floats = resize(deep.astype(np.float32), size, name)
        assert floats.dtype == np.float32
        assert np.abs(floats - expected).max() < 0.5  # torch's weights are float32
        levels = resize(deep, size, name)
        assert levels.dtype == np.uint16
        assert np.abs(levels - expected.clip(0, 65535)).max() < 1
