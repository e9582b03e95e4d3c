"""Operations on uint8 batches that replace each value through a table: 256 values per image and channel."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch import native_ops
from penstock.pipelines.batch.color import GREY, add_weighted, blend, constants, power_of_two, take_upper_half
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import Floats, Op

OPS = (Op.BRIGHTNESS, Op.CONTRAST, Op.AUTO_CONTRAST, Op.EQUALIZE, Op.POSTERIZE, Op.SOLARIZE, Op.SOLARIZE_ADD)


def map_values(images: torch.Tensor, ops: npt.NDArray[np.int8], values: Floats) -> None:
    """Apply one of OPS to each image of uint8 [n, height, width, 3], in place; equal operations must be adjacent."""
    runs, begin = [], 0
    by_torch = images.device.type == "cpu" and native_ops.library_for(images) is None
    for op, run in groupby(ops.tolist()):
        rows = slice(begin, begin := begin + sum(1 for _ in run))
        if op in _ON_LEVELS and by_torch:  # faster without a table
            _ON_LEVELS[op](images[rows], values[rows])
        else:
            runs.append((Op(op), rows))
    if not runs:
        return
    images, values = images[: runs[-1][1].stop], values[: runs[-1][1].stop]  # operations of _ON_LEVELS come last
    known = np.empty((len(images), 3, 256), np.uint8)
    for op, rows in runs:
        if op in _TABLES_BY_VALUE:
            known[rows] = _TABLES_BY_VALUE[op](values[rows, None])[:, None]
    tables = to_device(known, images.device)
    for op, rows in runs:
        if op not in _TABLES_BY_VALUE:
            tables[rows] = _TABLES_BY_PIXELS[op](images[rows], values[rows])
    look_up(images, tables)


def look_up(images: torch.Tensor, tables: torch.Tensor) -> None:
    """Set images[i, y, x, c] to tables[i, c, images[i, y, x, c]], in place; both uint8, tables [n, 3, 256]."""
    library = native_ops.library_for(images)
    if library is not None:
        native_ops.look_up(library, images, tables)
        return
    torch.index_select(tables.view(-1), 0, _compute_places(images, torch.int32).view(-1), out=images.view(-1))


def _compute_places(images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Compute 768 * image + 256 * channel + value, [n, height, width * 3].

    Computed for whole rows, because loops over 3 channels are slow on a CPU.
    """
    n, height, width, _ = images.shape
    return torch.add(images.view(n, height, width * 3), _offsets(images.device, dtype, power_of_two(n), width)[:n])


@lru_cache(maxsize=16)
def _offsets(device: torch.device, dtype: torch.dtype, n: int, width: int) -> torch.Tensor:
    channels = np.tile(np.arange(3) * 256, width)
    # A blocking copy, as in `constants`.
    return torch.from_numpy(np.arange(n)[:, None, None] * 768 + channels).to(dtype).to(device)


@lru_cache(maxsize=16)
def _levels(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256, dtype=dtype, device="cpu").to(device)


def _tabulate_brightness(factors: Floats) -> npt.NDArray[np.uint8]:
    """Make the tables of Pillow's ImageEnhance.Brightness: a blend with black."""
    mixed = np.arange(256, dtype=np.float32) * factors.astype(np.float32)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _tabulate_posterize(bits: Floats) -> npt.NDArray[np.uint8]:
    """Make the tables of Pillow's ImageOps.posterize: only the upper bits are kept."""
    return (np.arange(256) & make_posterize_masks(bits)).astype(np.uint8)


def make_posterize_masks(bits: Floats) -> npt.NDArray[np.int64]:
    """Return masks that keep this many upper bits of a level."""
    return 256 - (1 << (8 - bits.astype(np.int64)))


def _tabulate_solarize(thresholds: Floats) -> npt.NDArray[np.uint8]:
    """Make the tables of Pillow's ImageOps.solarize: levels from the threshold on are inverted."""
    levels = np.arange(256)
    return np.where(levels < thresholds, levels, 255 - levels).astype(np.uint8)


def _tabulate_solarize_add(added: Floats) -> npt.NDArray[np.uint8]:
    """Make the tables of timm's solarize_add: a number is added to levels below 128."""
    levels = np.arange(256)
    return np.where(levels < 128, np.minimum(levels + added, 255), levels).astype(np.uint8)


def _posterize(images: torch.Tensor, bits: Floats) -> None:
    images.bitwise_and_(_bytes_of(make_posterize_masks(bits), images))


def _solarize(images: torch.Tensor, thresholds: Floats) -> None:
    from_threshold_on = _is_at_least(images, np.ceil(thresholds))
    images.bitwise_xor_(from_threshold_on)


def _solarize_add(images: torch.Tensor, added: Floats) -> None:
    room = torch.sub(255, images)
    added_levels = torch.minimum(room, _bytes_of(added, images))
    images.add_(added_levels.bitwise_and_(_is_at_least(images, np.full(len(added), 128)).bitwise_not_()))


def _bytes_of(values: npt.NDArray[Any], images: torch.Tensor) -> torch.Tensor:
    return to_device(values.astype(np.uint8), images.device).view(-1, 1, 1, 1)


def _is_at_least(images: torch.Tensor, thresholds: npt.NDArray[Any]) -> torch.Tensor:
    """Return 255 where a level is at least the image's threshold (0 to 256), 0 elsewhere, uint8.

    Uses arithmetic, because a comparison takes five times as long on a CPU.
    """
    below = images.to(torch.int16).sub_(to_device(thresholds.astype(np.int16), images.device).view(-1, 1, 1, 1))
    return below.bitwise_right_shift_(15).bitwise_not_().to(torch.uint8)


def _tabulate_contrast(images: torch.Tensor, factors: Floats) -> torch.Tensor:
    """Make the tables of Pillow's ImageEnhance.Contrast: a blend with the rounded mean of the grey image."""
    pixels = images.shape[1] * images.shape[2]
    total = _sum_grey(images)
    pivot = total.add_(pixels / 2).div_(pixels, rounding_mode="floor").to(torch.float32)[:, None]
    factor = to_device(factors.astype(np.float32)[:, None], images.device)
    return blend(pivot, _levels(images.device, torch.float32).repeat(len(images), 1), factor)[:, None]


def _sum_grey(images: torch.Tensor) -> torch.Tensor:
    library = native_ops.library_for(images)
    if library is not None:
        return native_ops.sum_grey(library, images)
    return take_upper_half(add_weighted(images, *GREY)).sum((1, 2), dtype=torch.float64)


@lru_cache(maxsize=8)
def make_stretch_factors(device: torch.device) -> torch.Tensor:
    """Return scale factors for auto-contrast, float64 [256, 2], indexed by (max - min): for levels, for the lowest."""
    scales = np.ones((256, 2))
    scales[1:] = 255.0 / np.arange(1, 256)[:, None]
    scales[0, 1] = 0.0
    return torch.from_numpy(scales).to(device)


def _tabulate_auto_contrast(images: torch.Tensor, _: Floats) -> torch.Tensor:
    """Make the tables of Pillow's ImageOps.autocontrast: each channel is stretched to [0, 255], in float64."""
    n, height, width, _channels = images.shape
    rows = images.view(n, height, width * 3)  # whole rows first, as in _compute_places
    low = rows.amin(1).view(n, width, 3).amin(1)
    high = rows.amax(1).view(n, width, 3).amax(1)
    scales = make_stretch_factors(images.device).index_select(0, high.sub_(low).to(torch.int32).view(-1)).view(n, 3, 2)
    lowest = (low * scales[:, :, 1])[:, :, None]
    return (_levels(images.device, torch.float64) * scales[:, :, :1]).sub_(lowest).clamp_(0, 255)


def _tabulate_equalize(images: torch.Tensor, _: Floats) -> torch.Tensor:
    """Make the tables of Pillow's ImageOps.equalize: each channel's levels are spread by its histogram."""
    pixels, counts = images.shape[1] * images.shape[2], _count_levels(images)
    upto = counts.cumsum(2)
    # Pillow omits the highest level that occurs: the count up to the previous level is the largest below the total.
    step = (upto % pixels).amax(2, keepdim=True).floor_divide_(255)
    spread = upto.sub_(counts).add_(step // 2).floor_divide_(step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, spread, _levels(images.device, torch.int64))


def _count_levels(images: torch.Tensor) -> torch.Tensor:
    library = native_ops.library_for(images)
    if library is not None:
        return native_ops.count_levels(library, images)
    place = _compute_places(images, torch.int64).view(-1)
    counts = torch.zeros((len(images), 3, 256), dtype=torch.int32, device=images.device)
    counts.view(-1).scatter_add_(0, place, constants(images.device, 1).expand(place.shape))
    return counts


_TABLES_BY_VALUE = {
    Op.BRIGHTNESS: _tabulate_brightness,
    Op.POSTERIZE: _tabulate_posterize,
    Op.SOLARIZE: _tabulate_solarize,
    Op.SOLARIZE_ADD: _tabulate_solarize_add,
}
_ON_LEVELS: dict[int, Callable[[torch.Tensor, Floats], None]] = {
    Op.POSTERIZE: _posterize,
    Op.SOLARIZE: _solarize,
    Op.SOLARIZE_ADD: _solarize_add,
}
_TABLES_BY_PIXELS = {
    Op.CONTRAST: _tabulate_contrast,
    Op.AUTO_CONTRAST: _tabulate_auto_contrast,
    Op.EQUALIZE: _tabulate_equalize,
}
