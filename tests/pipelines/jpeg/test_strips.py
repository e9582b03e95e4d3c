"""Windows cut out of restart-indexed JPEGs: bit for bit the pixels of the whole source."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import jpeg_parts as jp
import numpy as np
import pytest
import simplejpeg
from jpeg_parts import Component
from jpeg_samples import SAMPLINGS
from odd_images import JFIF, jpeg, luma, textured
from progressive_jpegs import transcoded
from stored_images import head_of

from penstock.loaders.cache.format import STRIPS, Encoding
from penstock.loaders.cache_encode import encode as cache_encode
from penstock.loaders.cache_encode.encode import SampleEncoder, Stored
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg.strips import (
    Cut,
    StripGeometry,
    Window,
    cut_jpeg,
    plan_cut,
    segment_ends,
)

KINDS = (*SAMPLINGS, "grey")
NUM_WINDOWS = 20_000
SIZES = ((375, 500), (241, 163), (67, 1021), (530, 70), (33, 65), (17, 31), (8, 8), (1, 1), (1, 3000), (3000, 1))


def whole(kind: str, height: int, width: int) -> bytes:
    pixels = np.ascontiguousarray(textured(max(height, 48), max(width, 48))[:height, :width])
    if kind == "grey":
        return jpeg(luma(pixels)[..., 0], quality=85)
    return simplejpeg.encode_jpeg(pixels, 85, "RGB", kind)


def sources(kind: str) -> Iterator[tuple[str, bytes]]:
    """Each size, plain; some progressive, some with restart intervals that are not ours, some of another hand."""
    for height, width in SIZES:
        yield f"{width}x{height}", whole(kind, height, width)
    middle = whole(kind, 241, 163)
    yield "progressive", transcoded(middle, "-progressive")
    yield "progressive with restarts", transcoded(middle, "-progressive", "-restart", "7B")
    yield "progressive 1x3000", transcoded(whole(kind, 3000, 1), "-progressive")
    for interval in (1, 5, 1000):
        yield f"restart interval {interval}", transcoded(middle, "-restart", f"{interval}B")
    planes = jp.ycc(textured(53, 45))[: 1 if kind == "grey" else 3]
    factors = ((2, 2) if kind == "grey" else SAMPLINGS[kind], (1, 1), (1, 1))
    parts = [Component(plane, i + 1, *factor) for i, (plane, factor) in enumerate(zip(planes, factors, strict=False))]
    yield "by hand, restart interval 3", jp.encode(parts, head=JFIF, restart=3, quality=85)
    yield "by hand, a scan each", jp.encode(parts, head=JFIF, interleaved=False, quality=85)


@cache
def samples(kind: str) -> list[tuple[str, np.ndarray, Stored]]:
    """(name, pixels of the source, what a cache stores of it)."""
    encoder = SampleEncoder(Encoding())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_encode, "_MAX_GROWTH", 99)  # an image a pixel wide is otherwise stored as it is
        return [(n, simplejpeg.decode_jpeg(d, "RGB", strict=True), encoder.encode(d, 0)) for n, d in sources(kind)]


def geometry_of(stored: Stored) -> StripGeometry:
    names = ("width", "height", "mcu_width", "mcu_height", "segment_mcus")
    return StripGeometry(*(int(stored.record[name]) for name in names))


def cut_out(stored: Stored, window: Window) -> tuple[Cut, bytes]:
    """The window's JPEG, of no more strips than it needs."""
    geometry, strip_rows = geometry_of(stored), int(stored.record["strip_rows"])
    table, header, scan = head_of(stored)
    cut = plan_cut(geometry, window)
    first, last = cut.row // strip_rows, -(-cut.row_end // strip_rows)
    begin, end = int(table["end"][first - 1]) if first else 0, int(table["end"][last - 1])
    coded = np.frombuffer(scan[begin:end], np.uint8)
    height_offset = int(stored.record["height_offset"])
    return cut, cut_jpeg(header, height_offset, coded, first * strip_rows, geometry, cut)


def random_window(draw: random.Random, height: int, width: int) -> Window:
    """Of any size: half of them small, a quarter at an edge."""
    limit = draw.choice((1, 1, 0.1, 0.3))
    w, h = draw.randint(1, max(1, int(width * limit))), draw.randint(1, max(1, int(height * limit)))
    x, y = draw.randint(0, width - w), draw.randint(0, height - h)
    edge = draw.randrange(16)
    return (0 if edge == 0 else width - w if edge == 1 else x, 0 if edge == 2 else height - h if edge == 3 else y, w, h)


@pytest.mark.parametrize("kind", KINDS)
def test_random_windows_equal_the_source(kind: str) -> None:
    draw = random.Random(kind)
    known = samples(kind)
    for _, pixels, stored in known:
        assert stored.record["kind"] == STRIPS, stored.kept
        assert pixels.shape[:2] == (stored.record["height"], stored.record["width"])
    for number in range(-(-NUM_WINDOWS // len(KINDS))):
        name, pixels, stored = known[number % len(known)]
        every = (0, 0, pixels.shape[1], pixels.shape[0])  # once for each source, then random windows
        x, y, w, h = window = every if number < len(known) else random_window(draw, *pixels.shape[:2])
        cut, part = cut_out(stored, window)
        decoded = simplejpeg.decode_jpeg(part, "RGB", strict=True)
        assert decoded.shape == (cut.height, cut.width, 3)
        x0, y0 = x - cut.x, y - cut.y
        assert np.array_equal(decoded[y0 : y0 + h, x0 : x0 + w], pixels[y : y + h, x : x + w]), (name, window)


def test_a_small_window_is_a_small_file() -> None:
    stored = SampleEncoder(Encoding()).encode(whole("420", 375, 500), 0)
    cut, part = cut_out(stored, (200, 200, 50, 50))
    assert (cut.width, cut.height) == (64, 64)
    assert len(part) < len(stored.data) / 10


# ---- geometry


@pytest.mark.parametrize("damage", ["a marker too few", "a marker too many", "another size"])
def test_markers_that_do_not_match_the_geometry_are_noticed(damage: str) -> None:
    stored = SampleEncoder(Encoding()).encode(whole("420", 64, 256), 0)
    _, header, scan = head_of(stored)
    geometry, coded = geometry_of(stored), np.frombuffer(scan, np.uint8).copy()
    if damage == "a marker too few":
        coded[segment_ends(coded)[3] - 1] = 0
    elif damage == "a marker too many":
        coded[10:12] = 0xFF, 0xD0
    else:
        geometry = geometry._replace(height=48)
    cut = plan_cut(geometry, (0, 0, 256, geometry.height))
    with pytest.raises(LoaderError, match="E-CORRUPT"):
        cut_jpeg(header, int(stored.record["height_offset"]), coded, 0, geometry, cut)
