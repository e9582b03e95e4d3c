"""Plain types of images and windows, shared by all code that reads and decodes samples."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # RGB image [height, width, 3]
Levels = npt.NDArray[Any]  # the same, or uint16 if the image has 16 bits and the pipeline keeps them
UPSIDE_DOWN, TRANSPOSED = 1, 2  # bits of a turn: rows are reversed; before that, rows become columns
Interpolation = Literal["bilinear", "bicubic", "lanczos", "box", "nearest"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)  # numbered as in native/resize.h
Window = tuple[int, int, int, int]  # x, y, width, height of a rectangle in an image, in pixels
