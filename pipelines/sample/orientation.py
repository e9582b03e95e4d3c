"""EXIF orientation: from the stored frame to the upright one."""

from __future__ import annotations

from penstock.pipelines.image_types import Pixels, Window

# EXIF 2.32, tag 0x0112: (transpose first, then mirror left-right, then mirror top-bottom) turns stored pixels upright.
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
    """Whether the upright image has the stored width as its height."""
    return _STEPS[orientation][0]


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """The stored pixels, uint8 [height, width, 3], turned upright: a view."""
    transpose, mirror_x, mirror_y = _STEPS[orientation]
    turned = pixels.transpose(1, 0, 2) if transpose else pixels
    turned = turned[:, ::-1] if mirror_x else turned
    return turned[::-1] if mirror_y else turned


def stored_window(window: Window, width: int, height: int, orientation: int) -> Window:
    """Where the upright window (x, y, width, height) lies as stored; `width`, `height` are the upright sides."""
    x, y, w, h = window
    transpose, mirror_x, mirror_y = _STEPS[orientation]
    y = height - y - h if mirror_y else y
    x = width - x - w if mirror_x else x
    return (y, x, h, w) if transpose else (x, y, w, h)
