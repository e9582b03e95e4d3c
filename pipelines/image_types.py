"""Plain types of images, windows and parts of images, shared by all code that reads and decodes samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # RGB image [height, width, 3]
Levels = npt.NDArray[Any]  # the same, or uint16 where an image has 16 bits and the pipeline keeps them
UPSIDE_DOWN, TRANSPOSED = 1, 2  # bits of a turn: rows are reversed; before that, rows become columns
Window = tuple[int, int, int, int]  # x, y, width, height of a rectangle in an image, in pixels


class StoredSize(NamedTuple):
    """Hold the size of an image as it is stored.

    Attributes:
        width: stored width, in pixels.
        height: stored height, in pixels.
        orientation: EXIF orientation, 1 to 8, which says how to turn the image upright.
    """

    width: int
    height: int
    orientation: int


class ImagePart(NamedTuple):
    """Hold a rectangle of a stored image and its position in the image.

    Attributes:
        data: the rectangle as a separate JPEG, or as pixels, uint8 [height, width, 3].
        x: its left edge in the stored image, in pixels.
        y: its upper edge in the stored image, in pixels.
        width: its width in pixels.
        height: its height in pixels.
    """

    data: bytes | Pixels
    x: int
    y: int
    width: int
    height: int
