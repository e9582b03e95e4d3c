"""Shears, translations and rotations of uint8 batches: nearest pixel, black outside, exactly as in Pillow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch import device_ops
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import Floats, Op

OPS = (Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.ROTATE)
_FIXED = 65536.0  # one, in the 16.16 fixed point that Pillow's affine_fixed computes coordinates in


def inverse_matrices(ops: npt.NDArray[np.int8], values: Floats, size: tuple[int, int]) -> Floats:
    """Compute the source position of each output pixel, float64 [n, 6]: x' = a x + b y + c and y' = d x + e y + f.

    Conventions are torchvision's: a shear keeps the upper left corner in place, a rotation is counter-clockwise around
    the centre. `size` is (height, width) in pixels.
    """
    height, width = size
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


def warp(images: torch.Tensor, matrices: Floats) -> None:
    """Move the pixels of uint8 [n, height, width, 3], in place; `matrices` are those of inverse_matrices, [n, 6]."""
    n, height, width, _ = images.shape
    fixed = fixed_steps(matrices)[:, :, None, None]
    # Pixels outside the image are taken from a black frame of one pixel.
    framed = images.new_zeros((n, height + 2, width + 2, 3))
    framed[:, 1:-1, 1:-1] = images
    places = _compute_places if images.device.type == "cpu" else device_ops.compute_places
    torch.index_select(framed.view(-1, 3), 0, places(fixed, images).view(-1), out=images.view(-1, 3))


def _compute_places(fixed: npt.NDArray[np.int32], images: torch.Tensor) -> torch.Tensor:
    """Compute the source pixel in the framed images for each pixel, int32 [n, height, width]."""
    n, height, width, _ = images.shape
    steps = to_device(fixed, images.device)
    x = torch.arange(width, dtype=torch.int32, device=images.device)
    y = torch.arange(height, dtype=torch.int32, device=images.device)[:, None]
    column = (steps[0] * x + (steps[1] * y + steps[2])).bitwise_right_shift_(16).clamp_(-1, width)
    source = (steps[3] * x + (steps[4] * y + steps[5])).bitwise_right_shift_(16).clamp_(-1, height)
    first = torch.arange(n, dtype=torch.int32, device=images.device)[:, None, None] * ((height + 2) * (width + 2))
    return source.mul_(width + 2).add_(column).add_(first + (width + 3))
