"""Operations on uint8 batches that replace each value by one from a table: 256 values for each image and channel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch.color import blend, grey, planes
from penstock.pipelines.batch.to_device import to_device
from penstock.pipelines.plan.augmentations import Floats, Op

OPS = (Op.BRIGHTNESS, Op.CONTRAST, Op.POSTERIZE, Op.SOLARIZE, Op.AUTO_CONTRAST, Op.EQUALIZE)


def map_values(images: torch.Tensor, ops: npt.NDArray[np.int8], values: Floats) -> None:
    """Apply one of OPS to each image of uint8 [n, height, width, 3], in place; equal operations stand side by side."""
    tables = torch.empty((len(images), 3, 256), dtype=torch.uint8, device=images.device)
    starts = np.flatnonzero(np.diff(ops, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(ops)], strict=True):
        tables[start:end] = _TABLES[Op(ops[start])](images[start:end], values[start:end])
    look_up(images, tables)


def look_up(images: torch.Tensor, tables: torch.Tensor) -> None:
    """Set images[i, y, x, c] to tables[i, c, images[i, y, x, c]], in place; both uint8, tables [n, 3, 256]."""
    n = len(images)
    place = _places(images, torch.int32)
    if n > 1:
        place.add_(torch.arange(n, dtype=torch.int32, device=images.device).mul_(3 * 256)[:, None, None])
    torch.index_select(tables.view(-1), 0, place.view(-1), out=images.view(-1))


def _places(images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Compute 256 * channel + value, [n, height, width * 3]: whole rows, as loops over 3 channels are slow on a CPU."""
    n, height, width, _ = images.shape
    channel = torch.arange(3, dtype=dtype, device=images.device).mul_(256).repeat(width)
    return images.view(n, height, width * 3).to(dtype).add_(channel)


def _levels(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256, dtype=dtype, device=device)


def _blended(images: torch.Tensor, pivot: torch.Tensor, factors: Floats) -> torch.Tensor:
    """Blend the level `pivot`, float32 [n, 1], with each of the 256 levels: uint8 [n, 1, 256]."""
    ends = _levels(images.device, torch.float32).repeat(len(images), 1)
    factor = to_device(factors.astype(np.float32)[:, None], images.device)
    return blend(pivot, ends, factor).to(torch.uint8)[:, None]


def _brightness(images: torch.Tensor, factors: Floats) -> torch.Tensor:
    """Make the tables of Pillow's ImageEnhance.Brightness: a blend with black."""
    return _blended(images, torch.zeros((len(images), 1), device=images.device), factors)


def _contrast(images: torch.Tensor, factors: Floats) -> torch.Tensor:
    """Make the tables of Pillow's ImageEnhance.Contrast: a blend with the rounded mean of the grey image."""
    means = grey(planes(images)).sum((1, 2), dtype=torch.float64) / (images.shape[1] * images.shape[2])
    return _blended(images, (means + 0.5).floor().to(torch.float32)[:, None], factors)


def _posterize(images: torch.Tensor, bits: Floats) -> torch.Tensor:
    """Make the tables of Pillow's ImageOps.posterize: only the upper bits are left."""
    masks = 256 - (1 << (8 - bits.astype(np.int64)))
    return to_device((np.arange(256) & masks[:, None]).astype(np.uint8)[:, None], images.device)


def _solarize(images: torch.Tensor, thresholds: Floats) -> torch.Tensor:
    """Make the tables of Pillow's ImageOps.solarize: levels from the threshold on are inverted."""
    levels = np.arange(256)
    table = np.where(levels < thresholds[:, None], levels, 255 - levels)
    return to_device(table.astype(np.uint8)[:, None], images.device)


def _auto_contrast(images: torch.Tensor, _: Floats) -> torch.Tensor:
    """Make the tables of Pillow's ImageOps.autocontrast: each channel is stretched to [0, 255], in float64."""
    n, height, width, _channels = images.shape
    rows = images.view(n, height, width * 3)  # whole rows first, as in _places
    low = rows.amin(1).view(n, width, 3).amin(1).to(torch.float64)[:, :, None]
    high = rows.amax(1).view(n, width, 3).amax(1).to(torch.float64)[:, :, None]
    levels = _levels(images.device, torch.float64)
    # div_ is a true division, as Pillow's; `255.0 / tensor` would be 255.0 times a rounded reciprocal.
    scale = torch.full_like(low, 255.0).div_((high - low).clamp_(min=1))
    stretched = (levels * scale).add_(-low * scale).clamp_(0, 255)
    return torch.where(high > low, stretched, levels).to(torch.uint8)


def _equalize(images: torch.Tensor, _: Floats) -> torch.Tensor:
    """Make the tables of Pillow's ImageOps.equalize: each channel's levels are spread by its histogram."""
    n, height, width, _channels = images.shape
    device = images.device
    place = _places(images, torch.int64).view(n, height * width * 3)
    counts = torch.zeros((n, 3 * 256), dtype=torch.int32, device=device)
    counts.scatter_add_(1, place, torch.ones((), dtype=torch.int32, device=device).expand(place.shape))
    counts = counts.view(n, 3, 256).to(torch.int64)
    levels = _levels(device, torch.int64)
    highest = torch.where(counts > 0, levels, 0).amax(2, keepdim=True)
    step = (height * width - counts.gather(2, highest)) // 255
    below = counts.cumsum(2) - counts
    spread = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, spread, levels).to(torch.uint8)


_TABLES = {
    Op.BRIGHTNESS: _brightness,
    Op.CONTRAST: _contrast,
    Op.POSTERIZE: _posterize,
    Op.SOLARIZE: _solarize,
    Op.AUTO_CONTRAST: _auto_contrast,
    Op.EQUALIZE: _equalize,
}
