"""Where a plan puts points and masks, in exact arithmetic and by Pillow."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.pipelines.plan.crops import TRANSPOSED, UPSIDE_DOWN, BatchPlan


def matrix(plan: BatchPlan, row: int, out: tuple[int, ...]) -> list[list[Fraction]]:
    """The affine map of a row from source to output pixels, as exact fractions."""
    (x, y, w, h), (left, top, width, height) = plan.windows[row].tolist(), plan.places[row].tolist()
    sx, sy = Fraction(width, w), Fraction(height, h)
    found = [[sx, Fraction(0), left - x * sx], [Fraction(0), sy, top - y * sy]]
    if plan.turns[row] & TRANSPOSED:
        found = [found[1], found[0]]
    if plan.turns[row] & UPSIDE_DOWN:
        found[1] = [-found[1][0], -found[1][1], out[0] - found[1][2]]
    if plan.flips[row]:
        found[0] = [-found[0][0], -found[0][1], out[1] - found[0][2]]
    return found


def apply(map_: list[list[Fraction]], x: float, y: float) -> list[Fraction]:
    return [row[0] * Fraction(x) + row[1] * Fraction(y) + row[2] for row in map_]


def nearest(value: Fraction) -> np.float32:
    return np.float32(float(value))


def reference_mask(mask: npt.NDArray[Any], plan: BatchPlan, row: int, out: tuple[int, ...], fill: int) -> Any:
    """What Pillow makes of a mask: crop, resize, paste, transpose, mirror."""
    (x, y, w, h), (left, top, width, height) = plan.windows[row].tolist(), plan.places[row].tolist()
    image = Image.fromarray(mask)
    whole = Image.new(image.mode, out[::-1], fill)
    cut = image.crop((x, y, x + w, y + h)).resize((width, height), Image.Resampling.NEAREST)
    whole.paste(cut, (left, top))
    for bit, move in ((TRANSPOSED, Image.Transpose.TRANSPOSE), (UPSIDE_DOWN, Image.Transpose.FLIP_TOP_BOTTOM)):
        whole = whole.transpose(move) if plan.turns[row] & bit else whole
    return np.asarray(whole.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if plan.flips[row] else whole)
