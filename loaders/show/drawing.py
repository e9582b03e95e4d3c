"""Draws one image with its masks, boxes and keypoints."""

from __future__ import annotations

import colorsys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import LoaderError, one_line

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError as error:
    cause = f"a picture needs Pillow, which cannot be imported ({error})"
    raise LoaderError("E-DEPENDENCY", cause, fix="pip install pillow") from error

Colour = tuple[int, int, int]
_MASK_SHARE = 0.5  # of the colour of a mask, next to that of the image
_OUTSIDE = (0, 0, 0)  # colour over pixels of a mask that are outside the image
_GOLDEN = 0.618034  # turns the hue, so that neighbouring numbers have distant colours
_SMALLEST, _LARGEST = 160, 320  # longer side of a drawn image, in pixels


class Mask(NamedTuple):
    """Class numbers, integers [height, width]; 0 is background, `ignore_index` is outside the image."""

    values: npt.NDArray[Any]
    ignore_index: int


class Box(NamedTuple):
    """Corners of a box (left, top, right, bottom, in pixels), its class number, and the text drawn at it."""

    corners: tuple[float, ...]
    number: int
    text: str


class View(NamedTuple):
    """An image uint8 [height, width, 3], and what is drawn over it.

    points: sets of keypoints, float [n, 3]: x, y and visibility, 0 for an unknown point.
    """

    image: npt.NDArray[np.uint8]
    masks: tuple[Mask, ...] = ()
    boxes: tuple[Box, ...] = ()
    points: tuple[npt.NDArray[Any], ...] = ()


def colour_of(number: int) -> Colour:
    """Return a bright colour for a class number; the same one in every picture."""
    red, green, blue = colorsys.hsv_to_rgb(number * _GOLDEN % 1, 0.85, 1.0)
    return int(red * 255), int(green * 255), int(blue * 255)


def load_font(size: int = 12) -> Any:
    """Return Pillow's own font; without FreeType its bitmap font, which has one size."""
    try:
        return ImageFont.load_default(size)
    except (ImportError, OSError):
        return ImageFont.load_default()


def draw_view(view: View) -> Image.Image:
    """Return the image with its masks, boxes and keypoints, its longer side 160 to 320 pixels."""
    height, width = view.image.shape[:2]
    pixels = view.image
    for mask in view.masks:
        pixels = _overlay(pixels, mask)
    longest = max(height, width)
    scale = (
        _LARGEST / longest if longest > _LARGEST else float(-(-_SMALLEST // longest)) if longest < _SMALLEST else 1.0
    )
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.fromarray(np.ascontiguousarray(pixels)).resize(
        size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    )
    canvas, font = ImageDraw.Draw(image), load_font(11)
    for box in view.boxes:
        _draw_box(canvas, box, scale, font)
    for points in view.points:
        for number, (x, y, visibility) in enumerate(points.tolist()):
            if visibility > 0:
                colour, x, y = colour_of(number), x * scale, y * scale
                canvas.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour, outline=(0, 0, 0))
    return image


def _overlay(pixels: npt.NDArray[np.uint8], mask: Mask) -> npt.NDArray[np.uint8]:
    values = mask.values
    if values.shape != pixels.shape[:2]:
        return pixels
    numbers, places = np.unique(values, return_inverse=True)
    colours = np.array(
        [_OUTSIDE if number == mask.ignore_index else colour_of(number) for number in numbers.tolist()], np.float32
    )
    mixed = pixels * (1 - _MASK_SHARE) + colours[places.reshape(values.shape)] * _MASK_SHARE
    return np.where((values == 0)[..., None] & (mask.ignore_index != 0), pixels, mixed.astype(np.uint8))


def _draw_box(canvas: Any, box: Box, scale: float, font: Any) -> None:
    left, top, right, bottom = (corner * scale for corner in box.corners)
    colour = colour_of(box.number)
    canvas.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=2)
    text = one_line(box.text)
    if text:
        _, above, wide, below = canvas.textbbox((0, 0), text, font=font)
        y = top - below - 2 if top >= below + 2 else top
        canvas.rectangle((left, y, left + wide + 4, y + below + 2), fill=colour)
        canvas.text((left + 2, y + 1 - above / 2), text, fill=(0, 0, 0), font=font)
