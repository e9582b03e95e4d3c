"""Antialiased resizes of arrays by the name of their filter, with the same arithmetic as the native library."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from penstock.pipelines.image_types import Levels

Floats = npt.NDArray[np.float64]
_IN_TORCH = ("bilinear", "bicubic")  # modes of functional.interpolate that are antialiased in each torch
_MAX_PRECISION = 22
FAST_CHANNELS = 4  # of uint8, for which torch has vectorised kernels: in groups, 13 channels take 1.1 ms, together 5.7


def _triangle(x: Floats) -> Floats:
    weights: Floats = np.maximum(1 - np.abs(x), 0)
    return weights


def _cubic(x: Floats) -> Floats:
    """Return Keys' cubic convolution with a = -0.5, as in torch and Pillow."""
    a, x = -0.5, np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: Floats) -> Floats:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _box(x: Floats) -> Floats:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


FILTERS: dict[str, tuple[float, Callable[[Floats], Floats]]] = {
    "bilinear": (1, _triangle),
    "bicubic": (2, _cubic),
    "lanczos": (3, _lanczos),
    "box": (0.5, _box),
}
"""Radius of each filter in pixels at scale 1, and its value at a distance from the centre."""


@cache
def torch_kernel(interpolation: str) -> Any | None:
    """Return the kernel of functional.interpolate with an argument `out`; None if this torch has none."""
    # The names are private: a future torch may remove them. Lanczos came with torch 2.13.
    return getattr(getattr(torch.ops.aten, f"_upsample_{interpolation}2d_aa", None), "out", None)


def resize(pixels: Levels, size: tuple[int, int], interpolation: str = "bilinear") -> Levels:
    """Return an array [h, w, channels], uint8, uint16 or float32, resized to `size` (height, width).

    interpolation: one of INTERPOLATIONS. The filter widens as an image shrinks (antialiasing), except "nearest", which
    takes the pixel under each centre as Pillow does. uint8 is computed as in the native library and in torch, with
    weights of 15 bits and a rounded intermediate result; uint16 in float32, rounded half to even.
    """
    if pixels.shape[:2] == size:
        return pixels
    if interpolation == "nearest":
        rows, columns = (find_nearest(length, count) for length, count in zip(pixels.shape, size, strict=False))
        taken: Levels = pixels[rows].take(columns, 1)
        return taken
    if pixels.dtype == np.uint8:
        return _resize_bytes(pixels, size, interpolation)
    made = _resize_floats(pixels.astype(np.float32), size, interpolation)
    return made.round().clip(0, 65535).astype(np.uint16) if pixels.dtype == np.uint16 else made


def paste(levels: Levels, canvas: Levels, x: int, y: int) -> None:
    """Copy levels [h, w, ...] to a canvas [height, width, ...], from (x, y) on; what lies outside is left out."""
    height, width = levels.shape[:2]
    shown = levels[max(-y, 0) : canvas.shape[0] - y, max(-x, 0) : canvas.shape[1] - x]
    canvas[max(y, 0) : y + height, max(x, 0) : x + width] = shown


def find_nearest(length: int, count: int) -> npt.NDArray[np.intp]:
    """Return the source pixel under the centre of each of `count` output pixels over `length` source pixels.

    A centre between two pixels is rounded as Pillow's sum of steps in float64 is.
    """
    steps = np.full(count, length / count)
    steps[0] /= 2
    return np.cumsum(steps).astype(np.intp).clip(max=length - 1)


def resize_into(pixels: Levels, slot: torch.Tensor, interpolation: str = "bilinear") -> None:
    """Resize uint8 [h, w, channels] as `resize` does into `slot`: uint8 [1, channels, height, width], channels_last."""
    size, kernel = (slot.shape[-2], slot.shape[-1]), torch_kernel(interpolation)
    if kernel is not None:
        kernel(as_nchw(pixels), size, False, None, None, out=slot)
    elif interpolation in _IN_TORCH:  # one allocation and one copy more
        slot.copy_(functional.interpolate(as_nchw(pixels), size=size, mode=interpolation, antialias=True))
    else:
        slot.copy_(as_nchw(resize(pixels, size, interpolation)))


def _resize_bytes(pixels: Levels, size: tuple[int, int], interpolation: str) -> Levels:
    if torch_kernel(interpolation) is not None or interpolation in _IN_TORCH:
        if pixels.shape[2] > FAST_CHANNELS:
            firsts = range(0, pixels.shape[2], FAST_CHANNELS)
            groups = [np.ascontiguousarray(pixels[:, :, first : first + FAST_CHANNELS]) for first in firsts]
            return np.concatenate([_resize_bytes(group, size, interpolation) for group in groups], 2)
        made = np.empty((*size, pixels.shape[2]), np.uint8)
        resize_into(pixels, as_nchw(made), interpolation)
        return made
    for axis in (1, 0):
        if pixels.shape[axis] != size[axis]:
            pixels = _resize_axis(pixels, axis, _weigh(pixels.shape[axis], size[axis], interpolation))
    return pixels


def _resize_floats(levels: npt.NDArray[np.float32], size: tuple[int, int], interpolation: str) -> Levels:
    # torch 2.13 computes wrong floats for a result of one column in a single call: rows first, or numpy.
    if interpolation in _IN_TORCH and max(levels.shape[1], size[1]) > 1:
        image = as_nchw(levels)
        for step in ((size[0], levels.shape[1]), size) if size[1] == 1 else (size,):
            image = functional.interpolate(image, size=step, mode=interpolation, antialias=True)
        made: Levels = image[0].permute(1, 2, 0).numpy()
        return made
    for axis in (1, 0):
        levels = _resize_axis(levels, axis, _weigh(levels.shape[axis], size[axis], interpolation))
    return levels


def as_nchw(pixels: Levels) -> torch.Tensor:
    """Return pixels as a channels_last tensor [1, channels, height, width]; it shares their memory if contiguous."""
    # torch warns about read-only memory, and rejects negative strides, even of an axis of length 1.
    shared = pixels.flags.writeable and pixels.flags.c_contiguous and min(pixels.strides) >= 0
    return torch.from_numpy(pixels if shared else pixels.copy()).permute(2, 0, 1).unsqueeze(0)


class _Taps(NamedTuple):
    """How a side is resized.

    Attributes:
        sources: source pixels of each output pixel, [taps, count].
        weights: float64 [taps, count]; each column sums to 1, and is 0 for taps outside the image.
    """

    sources: npt.NDArray[np.intp]
    weights: Floats


def _weigh(length: int, count: int, interpolation: str) -> _Taps:
    """Return the taps of `count` output pixels over `length` source pixels; see resize_axis.c."""
    radius, weigh = FILTERS[interpolation]
    scale = length / count
    support, inverse = (radius * scale, 1 / scale) if scale >= 1 else (radius, 1.0)
    centres = scale * (np.arange(count) + 0.5)
    first = np.maximum(centres - support + 0.5, 0).astype(np.intp)
    end = np.minimum((centres + support + 0.5).astype(np.intp), length)
    sources = first + np.arange((end - first).max())[:, None]
    weights = np.where(sources < end, weigh((sources - centres + 0.5) * inverse), 0)
    total = np.add.accumulate(weights)[-1]  # in order, as in C
    return _Taps(np.minimum(sources, length - 1), weights / total)


def _resize_axis(levels: Levels, axis: int, taps: _Taps) -> Levels:
    """Resize one axis of uint8 or float32 [h, w, channels]."""
    shape = (1, -1, 1) if axis else (-1, 1, 1)
    if levels.dtype == np.float32:
        total: Levels = np.zeros(1, np.float32)
        for at, weight in zip(*taps, strict=True):
            total = total + levels.take(at, axis) * weight.astype(np.float32).reshape(shape)
        return total
    precision, most = 0, float(taps.weights.max())
    while precision < _MAX_PRECISION and 0.5 + most * (1 << (precision + 1)) < 1 << 15:
        precision += 1
    scaled = taps.weights * (1 << precision)
    whole = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32)
    sums: Any = 1 << (precision - 1)
    for at, weight in zip(taps.sources, whole, strict=True):
        sums = sums + levels.take(at, axis) * weight.reshape(shape)
    made: Levels = (sums >> precision).clip(0, 255).astype(np.uint8)
    return made
