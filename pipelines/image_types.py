"""Plain types of images, windows and parts of images, shared by all code that reads and decodes samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # RGB image [height, width, 3]
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
