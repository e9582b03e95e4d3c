"""Pictures of samples (masks and image targets), and how their windows follow those of the image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.image_types import TRANSPOSED, UPSIDE_DOWN, Window
from penstock.pipelines.resampling import paste, resize

Values = npt.NDArray[Any]  # [height, width], or [height, width, channels]


class Picture(NamedTuple):
    """A mask or image target that may not be decoded yet.

    Attributes:
        width: width in pixels.
        height: height in pixels.
        crop: returns a window of it, [height, width] or [height, width, channels].
    """

    width: int
    height: int
    crop: Callable[[Window], Values]


def crop_array(values: Values, window: Window) -> Values:
    """Return a window of an array as a view."""
    x, y, width, height = window
    return values[y : y + height, x : x + width]


def place_window(
    crop: Values,
    place: Window,
    out: Values,
    turn: int,
    flip: bool,
    outside: int | tuple[float, ...],
    interpolation: str = "nearest",
    missing: float | None = None,
) -> None:
    """Resize the window of a picture into `out`, and turn it as BatchPlan defines it for an image.

    crop: [h, w] or [h, w, channels]; out: [height, width] or [height, width, channels] of the same type. place: x, y,
    width, height of the target area, of which only a part may lie in `out`; the other pixels become `outside`. With
    "nearest" each pixel has the value of the source pixel under its centre, exactly as with Pillow's NEAREST, which
    torchvision uses for PIL images; the image's filters have the same centre. missing: as in resize_present.
    """
    turned = out[:, ::-1] if flip else out
    turned = turned[::-1] if turn & UPSIDE_DOWN else turned
    turned = turned.swapaxes(0, 1) if turn & TRANSPOSED else turned
    x, y, width, height = place
    if max(x, 0) + max(y, 0) or x + width < turned.shape[1] or y + height < turned.shape[0]:
        turned[...] = outside
    paste(resize_present(crop, (height, width), interpolation, missing), turned, x, y)


def resize_present(values: Values, size: tuple[int, int], interpolation: str, missing: float | None) -> Values:
    """Resize values [h, w, channels], of which those equal to `missing` (NaN for NaNs) are not mixed with others.

    A pixel is missing if the source pixel under its centre is, as with "nearest"; otherwise it is the mean of the
    present values below the filter, with the filter's weights, which must not be negative. Where all of these weights
    are 0 (a "box" may end before a centre between two pixels), it is the value under its centre.
    """
    if missing is None or interpolation == "nearest" or values.shape[:2] == size:
        return resize(values, size, interpolation)
    is_missing = values != values if missing != missing else values == missing
    if not is_missing.any():
        return resize(values, size, interpolation)
    weights = resize((~is_missing).astype(np.float32), size, interpolation)
    sums = resize(np.where(is_missing, 0, values).astype(np.float32), size, interpolation)
    is_taken = resize(is_missing, size, "nearest") | (weights <= 0)
    means = np.divide(sums, weights, out=np.zeros_like(sums), where=~is_taken)
    rounded = means if values.dtype == np.float32 else means.round()
    return np.where(is_taken, resize(values, size, "nearest"), rounded).astype(values.dtype)


def scale_window(window: Window, scale: int) -> Window:
    """Return a window of an image in pixels of a target with `scale` times its sides."""
    x, y, width, height = window
    return x * scale, y * scale, width * scale, height * scale
