"""Expected places of points and masks under a plan, in exact arithmetic and by Pillow."""

from __future__ import annotations

import cmath
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from augment_images import move_by_pillow, plain_move
from PIL import Image
from torch.nn import functional

from penstock.pipelines.plan.augmentations import AugmentPlan, Op
from penstock.pipelines.plan.crops import TRANSPOSED, UPSIDE_DOWN, BatchPlan


def matrix(plan: BatchPlan, row: int, out: tuple[int, ...]) -> list[list[Fraction]]:
    """Return the affine map of a row from source to output pixels, in exact fractions."""
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


def shown_box(plan: BatchPlan, row: int, out: tuple[int, ...]) -> list[Fraction]:
    """Return the left, top, right and bottom edge of the part of the image that the output of a row shows."""
    (x, y, w, h), (left, top, width, height) = plan.windows[row].tolist(), plan.places[row].tolist()
    ends = []
    for first, length, at, scaled, side in ((x, w, left, width, out[1]), (y, h, top, height, out[0])):
        shown = max(0, at) - at, min(side, at + scaled) - at
        ends.append([first + Fraction(edge * length, scaled) for edge in shown])
    return [ends[0][0], ends[1][0], ends[0][1], ends[1][1]]


def apply(map_: list[list[Fraction]], x: float, y: float) -> list[Fraction]:
    return [row[0] * Fraction(x) + row[1] * Fraction(y) + row[2] for row in map_]


def moves_of(plan: AugmentPlan | None, row: int) -> list[tuple[Op, float]]:
    """Return the operations of a row that move pixels, in nearest-neighbour form, with their values."""
    rounds = () if plan is None else zip(plan.ops[:, row].tolist(), plan.values[:, row].tolist(), strict=True)
    found = [(plain_move(Op(op)), value) for op, value in rounds]
    return [(op, value) for op, value in found if Op.SHEAR_X <= op <= Op.ROTATE]


def move_point(move: tuple[Op, float], x: float, y: float, out: tuple[int, ...]) -> tuple[float, float]:
    op, value = move
    if op is Op.ROTATE:
        center = complex(out[1] / 2, out[0] / 2)
        turned = center + (complex(x, y) - center) * cmath.exp(-1j * math.radians(value))
        return turned.real, turned.imag
    by_x = {Op.SHEAR_X: -value * y, Op.TRANSLATE_X: value}.get(op, 0.0)
    return x + by_x, y + {Op.SHEAR_Y: -value * x, Op.TRANSLATE_Y: value}.get(op, 0.0)


def move_box(
    moves: list[tuple[Op, float]], box: list[float], left: Any, out: tuple[int, ...]
) -> tuple[list[float], Any]:
    """Return the bounding box of the corners after each move, clipped to the image, and the area left of `left`."""
    for move in moves:
        xs, ys = zip(*(move_point(move, x, y, out) for x in box[::2] for y in box[1::2]), strict=True)
        around = [min(xs), min(ys), max(xs), max(ys)]
        box = [min(max(end, 0.0), float(out[1 - at % 2])) for at, end in enumerate(around)]
        full = area_of(around)
        left = left * (area_of(box) / full if full else 0)
    return box, left


def area_of(box: list[float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def move_mask_by_pillow(mask: Any, moves: list[tuple[Op, float]], fill: int) -> Any:
    image = Image.fromarray(mask)
    for op, value in moves:
        image = move_by_pillow(op, image, value, fill)
    return np.asarray(image)


def nearest(value: Fraction) -> np.float32:
    return np.float32(float(value))


def reference_mask(mask: npt.NDArray[Any], plan: BatchPlan, row: int, out: tuple[int, ...], fill: int) -> Any:
    """Return Pillow's result for a mask: crop, resize, paste, transpose, mirror."""
    (x, y, w, h), (left, top, width, height) = plan.windows[row].tolist(), plan.places[row].tolist()
    image = Image.fromarray(mask)
    whole = Image.new(image.mode, out[::-1], fill)
    cut = image.crop((x, y, x + w, y + h)).resize((width, height), Image.Resampling.NEAREST)
    whole.paste(cut, (left, top))
    for bit, move in ((TRANSPOSED, Image.Transpose.TRANSPOSE), (UPSIDE_DOWN, Image.Transpose.FLIP_TOP_BOTTOM)):
        whole = whole.transpose(move) if plan.turns[row] & bit else whole
    return np.asarray(whole.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if plan.flips[row] else whole)


def reference_target(
    target: Any, scale: int, plan: BatchPlan, row: int, out: tuple[int, ...], fill: Any, moves: list[tuple[Op, float]]
) -> Any:
    """Return an RGB target, [height, width, 3], cropped and resized by torch, then turned and moved by Pillow."""
    (x, y, w, h), (left, top, width, height) = ((part[row] * scale).tolist() for part in (plan.windows, plan.places))
    crop = torch.from_numpy(target[y : y + h, x : x + w].copy()).permute(2, 0, 1)[None]
    resized = functional.interpolate(crop, (height, width), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
    image = Image.new("RGB", (out[1] * scale, out[0] * scale), fill)
    image.paste(Image.fromarray(resized.contiguous().numpy()), (left, top))
    for bit, move in ((TRANSPOSED, Image.Transpose.TRANSPOSE), (UPSIDE_DOWN, Image.Transpose.FLIP_TOP_BOTTOM)):
        image = image.transpose(move) if plan.turns[row] & bit else image
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if plan.flips[row] else image
    for op, value in moves:
        shifts = scale if op in (Op.TRANSLATE_X, Op.TRANSLATE_Y) else 1
        smooth = Op(op + Op.SHEAR_X_BILINEAR - Op.SHEAR_X)
        image = move_by_pillow(smooth, image, value * shifts, fill)
    return np.asarray(image).astype(int)
