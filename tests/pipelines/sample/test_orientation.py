"""EXIF orientation: all eight, against Pillow's exif_transpose, on every decoder, windows included."""

from __future__ import annotations

import io

import jpeg_parts as jp
import numpy as np
import pytest
from odd_images import encoded, exif_segment, jpeg, oriented, textured
from PIL import Image, ImageOps

from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.orientation import stored_window, swaps_sides, upright
from penstock.pipelines.spec import ImagePipeline

DECODERS = ("simplejpeg", "turbojpeg", "pillow")
PLAIN = {
    "baseline": jpeg(textured(37, 62), subsampling=2),
    "restart": jpeg(textured(37, 62), restart_marker_rows=1),
    "progressive": jpeg(textured(37, 62), progressive=True),
}


def file_with(orientation: int, kind: str = "baseline") -> bytes:
    return jp.inserted(PLAIN[kind], exif_segment(orientation, big_endian=orientation % 2 == 0))


def pillow_upright(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image))


def decoder(name: str, exif: str = "apply") -> ImageDecoder:
    return ImageDecoder(ImagePipeline(exif=exif), name)


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", DECODERS)
def test_applied_as_pillow_applies_it(name: str, orientation: int, kind: str) -> None:
    data = file_with(orientation, kind)
    expected = pillow_upright(data)
    apply = decoder(name)
    probe = apply.probe(data)
    assert (probe.height, probe.width) == expected.shape[:2]
    assert probe.orientation == orientation
    assert np.array_equal(apply.full(data), expected)
    rng = np.random.default_rng(orientation)
    for _ in range(12):
        x, y = rng.integers(0, probe.width), rng.integers(0, probe.height)
        w, h = rng.integers(1, probe.width - x + 1), rng.integers(1, probe.height - y + 1)
        pixels = apply.window(data, probe, (int(x), int(y), int(w), int(h)))
        assert np.array_equal(pixels, expected[y : y + h, x : x + w])


@pytest.mark.parametrize("fmt", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_other_formats_carry_one_too(fmt: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = textured(21, 34)
    data = encoded(stored, fmt, exif=exif, **({"lossless": True} if fmt == "WEBP" else {}))
    apply, ignore = decoder("auto"), decoder("auto", "ignore")
    assert np.array_equal(apply.full(data), oriented(stored, orientation))
    assert np.array_equal(ignore.full(data), stored)
    probe = apply.probe(data)
    assert np.array_equal(apply.window(data, probe, (3, 2, 7, 11)), oriented(stored, orientation)[2:13, 3:10])


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("value", [0, 9, 255, 65535])
def test_an_orientation_that_does_not_exist_is_none(name: str, value: int) -> None:
    data = jp.inserted(PLAIN["baseline"], exif_segment(value))
    assert decoder(name).probe(data).orientation == 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_windows_lie_where_the_turned_array_has_them(orientation: int) -> None:
    stored = np.arange(5 * 7, dtype=np.uint8).reshape(5, 7, 1)
    turned = upright(stored, orientation)
    assert np.array_equal(turned, oriented(stored, orientation))
    height, width = turned.shape[:2]
    assert swaps_sides(orientation) == ((height, width) == (7, 5))
    for y in range(height):
        for x in range(width):
            for h in range(1, height - y + 1):
                for w in range(1, width - x + 1):
                    sx, sy, sw, sh = stored_window((x, y, w, h), width, height, orientation)
                    assert min(sx, sy) >= 0
                    part = upright(stored[sy : sy + sh, sx : sx + sw], orientation)
                    assert np.array_equal(part, turned[y : y + h, x : x + w])


def test_turning_makes_no_copy() -> None:
    stored = textured(6, 9)
    assert all(np.shares_memory(upright(stored, orientation), stored) for orientation in range(1, 9))
