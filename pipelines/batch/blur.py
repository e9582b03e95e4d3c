"""Gaussian blur of uint8 batches: Pillow's three box blurs along each axis, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import Floats

_PASSES = 3
_ONE = 1 << 24  # in the fixed-point format of Pillow's box blur
_DEVICE_VALUES = 1 << 24  # per piece of the batch: its three intermediate results take 64 MB each


def weigh_taps(sigmas: Floats) -> npt.NDArray[np.int32]:
    """Return the weights of one box blur, for a pixel and each pair of pixels around it: int32 [n, taps].

    They sum to 2**24 (pairs counted twice). In float32, as in Pillow's BoxBlur.c. Gwosdek et al., "Theoretical
    foundations of Gaussian convolution by extended box filtering", SSVM 2011, equations 7, 11 and 14.
    """
    variance = np.square(sigmas.astype(np.float32)) / np.float32(_PASSES)
    length = np.sqrt(12.0 * variance.astype(np.float64) + 1.0).astype(np.float32)
    whole = np.floor((length.astype(np.float64) - 1.0) / 2.0).astype(np.float32)
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance)
    radius = whole + part / (6 * (variance - (whole + 1) * (whole + 1)))
    inner = (np.float32(_ONE) / (radius * 2 + 1)).astype(np.int64)[:, None]
    whole = radius.astype(np.int64)[:, None]
    edge = (_ONE - (2 * whole + 1) * inner) // 2
    distance = np.arange(whole.max(initial=0) + 2)
    weights = np.where(distance <= whole, inner, np.where(distance == whole + 1, edge, 0))
    return weights.astype(np.int32)


def blur_each(images: torch.Tensor, sigmas: Floats) -> None:
    """Blur uint8 [n, height, width, 3], in place, as Pillow's ImageFilter.GaussianBlur; sigmas: [n], pixels.

    One image after another: a CPU takes half the time if the weights are plain numbers.
    """
    weights = weigh_taps(sigmas)
    memory = _allocate(images[:1], len(weights[0]))
    for rows, of_image in zip(torch.split(images.flatten(2), 1), weights, strict=True):
        _blur_both_ways(rows, np.trim_zeros(of_image, "b").tolist(), memory)


def blur_together(images: torch.Tensor, sigmas: Floats) -> None:
    """Blur uint8 [n, height, width, 3], in place, as blur_each does, with fewer kernels."""
    step = max(1, _DEVICE_VALUES // max(1, math.prod(images.shape[1:])))
    for first in range(0, len(images), step):
        piece = images[first : first + step]
        weights = weigh_taps(sigmas[first : first + step]).T[:, :, None, None]
        _blur_both_ways(piece.flatten(2), to_device(weights, images.device), _allocate(piece, len(weights)))


def _allocate(images: torch.Tensor, taps: int) -> torch.Tensor:
    """Return memory for intermediate results, reused on a CPU for each image: fresh pages cost as much as the work."""
    n, height, width, _ = images.shape
    frame = 2 * 3 * (taps - 1) * n * max(height, width)
    return torch.empty(3 * images.numel() + frame, dtype=torch.int32, device=images.device)


def _blur_both_ways(rows: torch.Tensor, weights: Any, memory: torch.Tensor) -> None:
    for axis, stride in ((2, 3), (1, 1)):
        _blur_along(rows, weights, axis, stride, memory)


def _blur_along(pixels: torch.Tensor, weights: Any, axis: int, stride: int, memory: torch.Tensor) -> None:
    """Blur uint8 [n, height, width * 3] along an axis, in place; neighbours along it are `stride` values apart.

    weights: one for each tap, numbers or tensors [n, 1, 1]; memory: from _allocate.
    """
    length, margin = pixels.shape[axis], (len(weights) - 1) * stride
    shape = list(pixels.shape)
    shape[axis] += 2 * margin
    values = pixels.numel()
    total, pair = (memory[begin : begin + values].view(pixels.shape) for begin in (0, values))
    framed = memory[2 * values : 2 * values + math.prod(shape)].view(shape)
    inner = framed.narrow(axis, margin, length).copy_(pixels)
    pairs = [
        (framed.narrow(axis, margin - away, length), framed.narrow(axis, margin + away, length))
        for away in range(stride, margin + 1, stride)
    ]
    # Pixels beyond an edge repeat the pixels at the edge.
    edges = [(margin - away, margin) for away in range(stride, margin + 1, stride)]
    edges += [(margin + length - stride + away, margin + length - stride) for away in range(stride, margin + 1, stride)]
    copies = [(framed.narrow(axis, to, stride), framed.narrow(axis, source, stride)) for to, source in edges]
    for _ in range(_PASSES):
        for beyond, edge in copies:
            beyond.copy_(edge)
        torch.mul(inner, weights[0], out=total)
        for (before, after), weight in zip(pairs, weights[1:], strict=True):
            torch.add(before, after, out=pair)
            total.add_(pair, alpha=weight) if isinstance(weight, int) else total.addcmul_(pair, weight)
        # The sum is below 2**32: a sum above 2**31 is negative here, with the same bits.
        torch.bitwise_right_shift(total.add_(_ONE // 2), 24, out=inner)
        inner.bitwise_and_(255)
    pixels.copy_(inner)
