"""How operations of a plan move pixels: matrices for points and boxes, and for masks the same steps as for images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipelines.native.library import native_library
from penstock.pipelines.plan.augmentations import AugmentPlan, Floats, Op

_MOST_BYTES = 4  # per mask pixel that the native library can move
_FIXED = 65536.0  # one, in the 16.16 fixed point of Pillow's affine_fixed


def plain_moves(ops: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Replace operations that interpolate by those that move pixels in the same way without interpolation."""
    return (ops - Op.SHEAR_X_BILINEAR) % (Op.ROTATE - Op.IDENTITY) + Op.SHEAR_X


def inverse_matrices(ops: npt.NDArray[np.int8], values: Floats, size: tuple[int, int]) -> Floats:
    """Compute the source position of each output pixel, float64 [n, 6]: x' = a x + b y + c and y' = d x + e y + f.

    Conventions are torchvision's: a shear keeps the upper left corner in place, a rotation is counter-clockwise around
    the centre. `size` is (height, width) in pixels. Operations with interpolation move pixels like those without; all
    others move nothing.
    """
    height, width = size
    ops = np.where(ops >= Op.SHEAR_X_BILINEAR, plain_moves(ops), ops)
    matrices = np.tile([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], (len(ops), 1))
    # As in torchvision, which gives a shear in degrees: the result may differ from the slope in the last bit.
    slopes = np.tan(np.radians(np.degrees(np.arctan(values))))
    matrices[:, 1] = np.where(ops == Op.SHEAR_X, slopes, 0.0)
    matrices[:, 3] = np.where(ops == Op.SHEAR_Y, slopes, 0.0)
    matrices[:, 2] = np.where(ops == Op.TRANSLATE_X, -values, 0.0)
    matrices[:, 5] = np.where(ops == Op.TRANSLATE_Y, -values, 0.0)
    angles = -np.radians(values % 360.0)  # PIL.Image.Image.rotate
    cos, sin = np.round(np.cos(angles), 15), np.round(np.sin(angles), 15)
    x, y = width / 2, height / 2
    rotations = np.stack((cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y), 1)
    return np.where((ops == Op.ROTATE)[:, None], rotations, matrices)


def fixed_steps(matrices: Floats) -> npt.NDArray[np.int32]:
    """Turn matrices [n, 6] into Pillow's steps of 16.16 fixed point, from the first pixel's centre: int32 [6, n]."""
    a, b, c, d, e, f = matrices.T
    starts = np.stack((a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5))
    return np.floor(starts * _FIXED + 0.5).astype(np.int32)


def forward_matrices(plan: AugmentPlan, size: tuple[int, int]) -> Floats:
    """Compute the matrix by which each operation moves a point: x' = a x + b y + c and y' = d x + e y + f.

    Returns float64 [rounds, batch, 2, 3]. Points are in pixels from the upper left corner of images of `size` (height,
    width); a pixel's centre is at 0.5.
    """
    inverse = np.tile(np.eye(3), (*plan.ops.shape, 1, 1))
    for each, ops, values in zip(inverse, plan.ops, plan.values, strict=True):
        each[:, :2] = inverse_matrices(ops, values, size).reshape(-1, 2, 3)
    forward: Floats = np.linalg.inv(inverse).astype(np.float64)
    return forward[..., :2, :]


def move_mask(mask: npt.NDArray[Any], plan: AugmentPlan, row: int, outside: int) -> npt.NDArray[Any]:
    """Return a mask [height, width], moved like image `row` of the plan's batch, by nearest pixel.

    For operations without interpolation, the mask's pixels move exactly like the image's. Pixels from outside the image
    become `outside`.
    """
    height, width = mask.shape
    library = native_library()
    x, y = np.arange(width, dtype=np.int32), np.arange(height, dtype=np.int32)[:, None]
    for ops, values in zip(plan.ops[:, row : row + 1], plan.values[:, row : row + 1], strict=True):
        matrices = inverse_matrices(ops, values, (height, width))
        if (matrices == (1, 0, 0, 0, 1, 0)).all():
            continue
        steps = fixed_steps(matrices)[:, 0].copy()
        if library is not None and mask.itemsize <= _MOST_BYTES:
            source, fill = np.ascontiguousarray(mask), np.array(outside, mask.dtype).tobytes()
            mask = np.empty_like(source)
            size = height, width, mask.itemsize
            library.pn_move(source.ctypes.data, mask.ctypes.data, *size, steps.ctypes.data, fill)
            continue
        a, b, c, d, e, f = steps
        column, source = (a * x + (b * y + c)) >> 16, (d * x + (e * y + f)) >> 16
        inside = (column >= 0) & (column < width) & (source >= 0) & (source < height)
        mask = np.where(inside, mask[source.clip(0, height - 1), column.clip(0, width - 1)], outside).astype(mask.dtype)
    return mask
