"""Plain types of images and their parts, shared by all that read and decode samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # [height, width, 3], RGB
Window = tuple[int, int, int, int]  # x, y, width, height in pixels


class StoredSize(NamedTuple):
    """Sides in pixels of an image as it is stored, and the EXIF orientation (1 to 8) that would turn it upright."""

    width: int
    height: int
    orientation: int


class ImagePart(NamedTuple):
    """A rectangle of a stored image, and where it lies there: a JPEG of its own, or pixels [height, width, 3]."""

    data: bytes | Pixels
    x: int
    y: int
    width: int
    height: int
