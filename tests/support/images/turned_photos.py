"""Photos of every EXIF orientation with one red rectangle, and its detection in pixels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from odd_images import encoded
from PIL import Image

# Orientation -> stored form of a photo that it turns upright.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


class Photo(NamedTuple):
    """A stored photo: its file, upright size, orientation, and the rectangle in both frames."""

    data: bytes
    size: tuple[int, int]
    orientation: int
    upright_box: list[int]
    stored_box: list[int]


def make_photo(rng: np.random.Generator, kind: str, orientation: int) -> Photo:
    width, height = (int(side) for side in rng.integers(120, 260, 2))
    height = width if rng.random() < 0.2 else height
    x, y = int(rng.integers(20, width // 2)), int(rng.integers(20, height // 2))
    right, bottom = int(rng.integers(x + 30, width - 9)), int(rng.integers(y + 30, height - 9))
    pixels = np.full((height, width, 3), 40, np.uint8)
    pixels[y:bottom, x:right] = (250, 0, 0)
    image, way, exif = Image.fromarray(pixels), STORED[orientation], Image.Exif()
    image = image if way is None else image.transpose(way)
    ys, xs = np.nonzero(np.asarray(image)[..., 0] > 200)
    exif[0x0112] = orientation
    data = encoded(image, kind, exif=exif, **({"quality": 96, "subsampling": 0} if kind == "JPEG" else {}))
    stored = [int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1]
    return Photo(data, (width, height), orientation, [x, y, right, bottom], stored)


def find_red(image: Any) -> list[int] | None:
    red = (image[0] > 145) & (image[1] < 110)
    rows, columns = red.any(1).nonzero()[:, 0], red.any(0).nonzero()[:, 0]
    return [int(end) for end in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)] if len(rows) else None
