"""Shears, translations and rotations of uint8 batches with interpolation, as Pillow's BILINEAR and BICUBIC do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch.color import constants, to_planes
from penstock.pipelines.batch.native_ops import library_for
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import Floats, Op
from penstock.pipelines.plan.moves import inverse_matrices, plain_moves

_FIRSTS = {Op.SHEAR_X_BILINEAR: 2, Op.SHEAR_X_BICUBIC: 4}  # first operation of each kind: taps per axis
_ACROSS, _DOWN = (Op.SHEAR_X, Op.TRANSLATE_X), (Op.SHEAR_Y, Op.TRANSLATE_Y)
# The operations of a group move pixels along the same axes.
GROUPS = tuple(
    tuple(Op(first + op - Op.SHEAR_X) for op in moves) for first in _FIRSTS for moves in (_ACROSS, _DOWN, (Op.ROTATE,))
)
_ROUNDING = 2.0**-11  # above the errors of sums in float32, so that whole numbers are not rounded down to the next
_CPU_PIXELS, _DEVICE_PIXELS = 1 << 16, 1 << 22  # per piece of the batch

Axis = list[tuple[torch.Tensor, torch.Tensor | None]]


def warp_smoothly(images: torch.Tensor, ops: npt.NDArray[np.int8], values: Floats, fill: tuple[int, int, int]) -> None:
    """Move the pixels of uint8 [n, height, width, 3], in place; all operations belong to one of GROUPS.

    Pixels from outside the image get the colour `fill`. Results equal Pillow's except in a few values per thousand,
    which differ by one level, because Pillow computes in float64.
    """
    n, height, width, _ = images.shape
    taps = 2 if ops[0] < Op.SHEAR_X_BICUBIC else 4
    matrices = inverse_matrices(ops, values, (height, width))
    move = Op(plain_moves(ops[:1])[0])
    library = library_for(images)
    if library is not None:
        along = 1 if move in _DOWN else taps, 1 if move in _ACROSS else taps
        for image, matrix in zip(images, matrices, strict=True):
            source = image.clone()
            library.pn_move_smoothly(
                source.data_ptr(), image.data_ptr(), height, width, *along, matrix.ctypes.data, bytes(fill)
            )
        return
    step = max(1, (_CPU_PIXELS if images.device.type == "cpu" else _DEVICE_PIXELS) // (height * width))
    # A CPU reuses the memory for each piece: fresh pages cost as much as the work.
    memory = torch.empty((3, 3 * min(n, step) * height * width), dtype=torch.float32, device=images.device)
    for first in range(0, n, step):
        piece = slice(first, first + step)
        _warp_piece(images[piece], matrices[piece], taps, move, fill, memory)


def _warp_piece(
    images: torch.Tensor, matrices: Floats, taps: int, move: Op, fill: tuple[int, int, int], memory: torch.Tensor
) -> None:
    n, height, width, _ = images.shape
    columns, outside_x = _place_taps(
        matrices[:, :3], (height, width), taps * (move not in _DOWN), images.device, axis=1
    )
    rows, outside_y = _place_taps(matrices[:, 3:], (height, width), taps * (move not in _ACROSS), images.device, axis=0)
    first_pixel = torch.arange(n, dtype=torch.int32, device=images.device)[:, None, None] * (height * width)
    planes = to_planes(images.view(1, n * height, width, 3)).to(torch.float32).view(3, -1)
    parts = [part[: images.numel()].view(3, n, height, width) for part in memory]
    # Each product and each sum is rounded, so that all devices agree.
    for row_number, (row, of_row) in enumerate(rows):
        along = parts[1] if row_number else parts[0]
        start = row * width + first_pixel
        for number, (column, of_column) in enumerate(columns):
            part = parts[2] if number else along
            torch.index_select(planes, 1, (start + column).view(-1), out=part.view(3, -1))
            if of_column is not None:
                part.mul_(of_column)
            if number:
                along.add_(part)
        if of_row is not None:
            along.mul_(of_row)
        if row_number:
            parts[0].add_(along)
    levels = parts[0].add_(_ROUNDING).clamp_(0, 255).to(torch.int32)
    outside = (outside_x | outside_y).bitwise_right_shift_(31)  # all bits or none
    colour = constants(images.device, *fill)[:, None, None, None]
    levels.add_(torch.sub(colour, levels).bitwise_and_(outside))
    torch.stack(levels.to(torch.uint8).unbind(0), -1, out=images)


def _place_taps(
    matrix: Floats, size: tuple[int, int], taps: int, device: torch.device, *, axis: int
) -> tuple[Axis, torch.Tensor]:
    """Return source pixels and their weights along an axis, each [n, height, width] or broadcast to that.

    matrix: [n, 3], gives the source position. The second result is negative where this is outside the image. Without
    taps, pixels keep their position along the axis.
    """
    (height, width), length = size, size[axis]
    if not taps:
        own = torch.arange(length, dtype=torch.int32, device=device).view((1, -1, 1) if axis == 0 else (1, 1, -1))
        return [(own, None)], own
    a, b, c = matrix.T[:, :, None]
    parts = (a * (np.arange(width) + 0.5))[:, None], (b * (np.arange(height) + 0.5) + c)[:, :, None]
    position = torch.add(*(to_device(part, device) for part in parts))
    pixel = position.floor().to(torch.int32)
    outside = pixel | (length - 1 - pixel)
    lower = position.sub_(0.5).floor()
    share = position.sub_(lower).to(torch.float32)
    first = lower.to(torch.int32)
    weights = _weigh_bilinear(share) if taps == 2 else _weigh_bicubic(share)
    places = [torch.add(first, number - taps // 2 + 1).clamp_(0, length - 1) for number in range(taps)]
    return list(zip(places, weights, strict=True)), outside


def _weigh_bilinear(share: torch.Tensor) -> list[torch.Tensor]:
    return [1 - share, share]


def _weigh_bicubic(share: torch.Tensor) -> list[torch.Tensor]:
    """Return the weights of four pixels in Pillow's bicubic transform: a cubic convolution with a = -1."""
    square = share * share
    outer = square - square * share  # minus the weight of the last pixel
    return [outer + square - share, 1 - square - outer, outer + share, -outer]
