"""EXIF orientation: turns stored pixels upright, and locates an upright window in the stored image."""

from __future__ import annotations

from penstock.pipelines.image_types import Levels, Window

# EXIF 2.32, tag 0x0112: how to turn stored pixels upright (transpose, then mirror left-right, then mirror top-bottom).
_STEPS: dict[int, tuple[bool, bool, bool]] = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}


def swaps_sides(orientation: int) -> bool:
    """Return whether the upright image has the stored image's width and height swapped."""
    return _STEPS[orientation][0]


def upright(pixels: Levels, orientation: int) -> Levels:
    """Return a view of stored pixels, [height, width, 3], turned upright."""
    transpose, mirror_x, mirror_y = _STEPS[orientation]
    turned = pixels.transpose(1, 0, 2) if transpose else pixels
    turned = turned[:, ::-1] if mirror_x else turned
    return turned[::-1] if mirror_y else turned


def stored_window(window: Window, width: int, height: int, orientation: int) -> Window:
    """Convert a window of the upright image to the stored image's coordinates; `width`, `height`: the upright sides."""
    x, y, w, h = window
    transpose, mirror_x, mirror_y = _STEPS[orientation]
    y = height - y - h if mirror_y else y
    x = width - x - w if mirror_x else x
    return (y, x, h, w) if transpose else (x, y, w, h)
