"""Crops drawn to a place in a turned output image, in colour or grey; several images from one decoded row."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from native_tests import to_images
from odd_images import jpeg, textured
from PIL import Image

from penstock.pipelines.image_types import INTERPOLATIONS, TRANSPOSED, UPSIDE_DOWN, Pixels
from penstock.pipelines.native.rows import ENCODED, MEMORY, NO_NAMES, ROW, NativeStage
from penstock.pipelines.resampling import resize
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

OK, UNSUPPORTED = 0, 1
FILL = (9, 130, 250)
HEIGHT, WIDTH = 61, 83


def draw(pixels: Pixels, row: Any, channels: int) -> npt.NDArray[np.uint8]:
    """Return the image of a row, computed independently: uint8 [height, width, channels]."""
    x, y, w, h = row["window"].tolist()
    left, top, width, height = row["place"].tolist()
    crop = resize(pixels[y : y + h, x : x + w].copy(), (height, width), INTERPOLATIONS[row["interpolation"]])
    shown = Image.new("RGB", (row["out_width"], row["out_height"]), FILL)
    shown.paste(Image.fromarray(crop), (left, top))
    image = np.asarray(shown)
    if row["turn"] & TRANSPOSED:
        image = image.transpose(1, 0, 2)
    if row["turn"] & UPSIDE_DOWN:
        image = image[::-1]
    if row["flip"]:
        image = image[:, ::-1]
    return image if channels == 3 else np.asarray(Image.fromarray(np.ascontiguousarray(image)).convert("L"))[..., None]


@pytest.fixture(scope="module")
def photo() -> tuple[bytes, Pixels]:
    data = jpeg(textured(HEIGHT, WIDTH), quality=90, subsampling=2)
    decoder = ImageDecoder(ImagePipeline(), "simplejpeg")
    return data, decoder.window(data, decoder.probe(data), (0, 0, WIDTH, HEIGHT), sound=True).copy()


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kind", [ENCODED, MEMORY])
def test_random_images_equal_those_made_in_numpy(
    native: ctypes.CDLL, photo: tuple[bytes, Pixels], kind: int, channels: int
) -> None:
    """Ten images from one decoded row; the memory between them is unchanged."""
    data, pixels = photo
    held = np.frombuffer(data, np.uint8) if kind == ENCODED else pixels
    random = np.random.default_rng(0)
    stage = NativeStage(native, 10**8, apply_exif=False, channels=channels, fill=FILL)
    for _ in range(30):
        rows = np.zeros(10, ROW)
        rows["kind"], rows["offset"], rows["size"], rows["repeats"] = kind, held.ctypes.data, held.nbytes, 1
        rows["repeats"][[0, 7]] = 0  # two rows of the same image that are decoded separately
        rows["width"], rows["height"] = (0, 0) if kind == ENCODED else (WIDTH, HEIGHT)
        assert stage.load(rows, NO_NAMES)
        assert rows["width"].tolist() == [WIDTH] * 10
        end = 5
        for row in rows:
            sides = random.integers(1, 40, 2).tolist()
            row["turn"], row["flip"] = random.integers(0, 4), random.integers(0, 2)
            out_h, out_w = (sides[0], sides[0]) if row["turn"] & TRANSPOSED else sides
            row["out_height"], row["out_width"], row["out"] = out_h, out_w, end
            row["window"], row["place"] = boxed(random, WIDTH, HEIGHT), boxed(random, out_w, out_h)
            if random.integers(0, 4) == 0:
                row["place"] = (0, 0, out_w, out_h)
            elif random.integers(0, 2):
                row["place"] = around(random, out_w, out_h)
            row["interpolation"] = random.integers(0, len(INTERPOLATIONS))
            end += channels * out_h * out_w + 5
        memory = np.full(end, 77, np.uint8)
        assert stage.fill(rows, memory)
        expected = np.full(end, 77, np.uint8)
        for row in rows:
            made = draw(pixels, row, channels)
            expected[row["out"] : row["out"] + made.size] = made.ravel()
        assert rows["result"].tolist() == [OK] * 10
        assert np.array_equal(memory, expected)


def boxed(random: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    x, y = (int(random.integers(0, side)) for side in (width, height))
    return x, y, int(random.integers(1, width - x + 1)), int(random.integers(1, height - y + 1))


def around(random: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """Return a place of which only a part may lie in the image."""
    w, h = (int(side) for side in random.integers(1, 150, 2))
    return int(random.integers(1 - w, width)), int(random.integers(1 - h, height)), w, h


def test_impossible_places_are_unsupported_and_touch_nothing(native: ctypes.CDLL) -> None:
    pixels, wide, tall = textured(20, 30), (6, 8), (8, 6)
    for sides, place, turn, result in (
        (wide, (0, 0, 8, 6), 0, OK),
        (wide, (0, 0, 8, 6), TRANSPOSED, UNSUPPORTED),
        (wide, (0, 0, 6, 6), TRANSPOSED, UNSUPPORTED),
        (tall, (0, 0, 6, 8), 0, OK),
        (tall, (0, 0, 6, 8), TRANSPOSED, UNSUPPORTED),
        (tall, (0, 0, 6, 6), TRANSPOSED, UNSUPPORTED),
        (wide, (-3, -4, 1 << 20, 1 << 20), 0, OK),
        (wide, (8, 0, 8, 6), 0, UNSUPPORTED),
        (wide, (0, 6, 8, 6), 0, UNSUPPORTED),
        (wide, (-4, 0, 4, 4), 0, UNSUPPORTED),
        (wide, (0, -4, 4, 4), 0, UNSUPPORTED),
        (wide, (0, 0, (1 << 20) + 1, 4), 0, UNSUPPORTED),
        (wide, (-(2**31), 0, 2**31 - 1, 4), 0, UNSUPPORTED),
        (wide, (0, -(2**31), 4, 2**31 - 1), 0, UNSUPPORTED),
        (wide, (0, 0, 0, 4), 0, UNSUPPORTED),
        (wide, (0, 0, 4, 0), 0, UNSUPPORTED),
        (wide, (2**31 - 1, 0, 4, 4), 0, UNSUPPORTED),
        (wide, (0, 2**31 - 1, 4, 4), 0, UNSUPPORTED),
    ):
        stage, rows = NativeStage(native, 10**8, apply_exif=False), np.zeros(1, ROW)
        images = np.zeros((1, *sides, 3), "u1")
        rows["kind"], rows["offset"], rows["size"] = MEMORY, pixels.ctypes.data, pixels.nbytes
        rows["width"], rows["height"] = 30, 20
        assert stage.load(rows, NO_NAMES)
        rows["window"], to_images(rows, images)["place"], rows["turn"] = (1, 2, 10, 11), place, turn
        assert stage.fill(rows, images)
        assert (rows["result"].tolist(), bool(images.any())) == ([result], result == OK)


def test_a_row_that_cannot_be_drawn_leaves_the_others_of_its_image(native: ctypes.CDLL) -> None:
    pixels = textured(20, 30)
    stage, rows, images = NativeStage(native, 10**8, apply_exif=False), np.zeros(3, ROW), np.zeros((3, 4, 4, 3), "u1")
    rows["kind"], rows["offset"], rows["size"], rows["row"] = MEMORY, pixels.ctypes.data, pixels.nbytes, range(3)
    rows["width"], rows["height"], rows["repeats"] = 30, 20, [0, 1, 1]
    assert stage.load(rows, NO_NAMES)
    rows["window"] = [(0, 0, 4, 4), (28, 0, 4, 4), (8, 9, 4, 4)]
    assert stage.fill(to_images(rows, images), images)
    assert rows["result"].tolist() == [OK, UNSUPPORTED, OK]
    assert np.array_equal(images[2], pixels[9:13, 8:12])
    assert not images[1].any()
