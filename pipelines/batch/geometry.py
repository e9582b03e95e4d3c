"""Shears, translations and rotations of uint8 batches: nearest pixel, black outside, exactly as in Pillow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch import device_ops
from penstock.pipelines.batch.native_ops import library_for
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import Floats, Op
from penstock.pipelines.plan.moves import fixed_steps

OPS = (Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.ROTATE)


def warp(images: torch.Tensor, matrices: Floats) -> None:
    """Move the pixels of uint8 [n, height, width, 3], in place; `matrices`: from moves.inverse_matrices, [n, 6]."""
    n, height, width, _ = images.shape
    library = library_for(images)
    if library is not None:
        for image, steps in zip(images, np.ascontiguousarray(fixed_steps(matrices).T), strict=True):
            source = image.clone()
            library.pn_move(source.data_ptr(), image.data_ptr(), height, width, 3, steps.ctypes.data, bytes(3))
        return
    fixed = fixed_steps(matrices)[:, :, None, None]
    # Pixels outside the image are read from a black frame, one pixel wide.
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
