"""How operations of a plan move pixels: matrices for points and boxes, for pictures the same steps as for images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipelines.native.library import native_library
from penstock.pipelines.plan.augmentations import AugmentPlan, Floats, Op

_MOST_BYTES = 4  # per pixel that the native library can move
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


def move_picture(
    values: npt.NDArray[Any],
    plan: AugmentPlan,
    row: int,
    outside: int | tuple[float, ...],
    *,
    scale: int = 1,
    is_smooth: bool = False,
) -> npt.NDArray[Any]:
    """Return a mask [height, width] or a target [height, width, channels], moved like image `row` of the plan's batch.

    Pixels move by nearest pixel: for operations without interpolation exactly like the image's. With `is_smooth` each
    is interpolated between four, as with Pillow's BILINEAR; whole levels are rounded down. Pixels from outside the
    image become `outside`. scale: the target's sides as a multiple of the image's.
    """
    height, width = values.shape[0] // scale, values.shape[1] // scale
    for ops, drawn in zip(plan.ops[:, row : row + 1], plan.values[:, row : row + 1], strict=True):
        matrices = inverse_matrices(ops, drawn, (height, width))
        if (matrices == (1, 0, 0, 0, 1, 0)).all():
            continue
        matrices[:, [2, 5]] *= scale
        move = _move_smoothly if is_smooth else _move_nearest
        values = move(values, matrices, np.array(outside, values.dtype))
    return values


def _move_nearest(values: npt.NDArray[Any], matrices: Floats, outside: npt.NDArray[Any]) -> npt.NDArray[Any]:
    height, width = values.shape[:2]
    steps, library = fixed_steps(matrices)[:, 0].copy(), native_library()
    pixel_bytes = values.itemsize * values[0, 0].size
    if library is not None and pixel_bytes <= _MOST_BYTES:
        source = np.ascontiguousarray(values)
        moved: npt.NDArray[Any] = np.empty_like(source)
        size = height, width, pixel_bytes
        library.pn_move(source.ctypes.data, moved.ctypes.data, *size, steps.ctypes.data, outside.tobytes())
        return moved
    a, b, c, d, e, f = steps
    x, y = np.arange(width, dtype=np.int32), np.arange(height, dtype=np.int32)[:, None]
    column, source = (a * x + (b * y + c)) >> 16, (d * x + (e * y + f)) >> 16
    inside = (column >= 0) & (column < width) & (source >= 0) & (source < height)
    taken: npt.NDArray[Any] = values[source.clip(0, height - 1), column.clip(0, width - 1)]
    taken[~inside] = outside
    return taken


def _move_smoothly(values: npt.NDArray[Any], matrices: Floats, outside: npt.NDArray[Any]) -> npt.NDArray[Any]:
    height, width = values.shape[:2]
    a, b, c, d, e, f = matrices[0].tolist()
    columns, rows = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    x, y = a * columns + b * rows + c, d * columns + e * rows + f
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = np.floor(x - 0.5), np.floor(y - 0.5)
    along, down = (x - 0.5 - left)[..., None], (y - 0.5 - top)[..., None]
    planes = values.reshape(height, width, -1)

    def blend(row: npt.NDArray[Any]) -> npt.NDArray[Any]:
        at = row.astype(np.intp).clip(0, height - 1)
        first, second = (
            planes[at, (left + step).astype(np.intp).clip(0, width - 1)].astype(np.float64) for step in (0, 1)
        )
        made: npt.NDArray[Any] = first + (second - first) * along
        return made

    upper, lower = blend(top), blend(top + 1)
    moved: npt.NDArray[Any] = (upper + (lower - upper) * down).astype(values.dtype).reshape(values.shape)
    moved[~inside] = outside
    return moved
