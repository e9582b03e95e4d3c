"""Saturation, sharpness and hue of uint8 batches, computed and rounded as Pillow does."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import Floats

# Pillow's conversion to mode L, in units of 2**-16: the rounding term, and the weights of the channels.
GREY = (32768, (19595, 38470, 7471))


def to_planes(images: torch.Tensor) -> torch.Tensor:
    """Copy images [n, height, width, 3] as planes of one channel, contiguous [n, 3, height, width]."""
    planes = torch.empty((len(images), 3, *images.shape[1:3]), dtype=images.dtype, device=images.device)
    for channel in range(3):  # one by one: on a CPU this takes a fifth of the time of a permuted copy
        planes[:, channel] = images[..., channel]
    return planes


def interleave(channels: torch.Tensor, images: torch.Tensor) -> None:
    """Write planes [n, 3, height, width] into `images` [n, height, width, 3]: the reverse of `to_planes`."""
    torch.stack(channels.unbind(1), -1, out=images)


def to_grey(channels: torch.Tensor) -> torch.Tensor:
    """Convert planes to grey as Pillow converts to mode L: whole numbers in float32 [n, height, width].

    Every sum is an integer below 2**24, so float32 is exact whatever the order of additions on a device.
    """
    red, green, blue = channels.to(torch.float32).unbind(1)
    return (red * 19595).add_(green * 38470).add_(blue * 7471).add_(32768).mul_(2.0**-16).floor_()


@lru_cache(maxsize=16)
def constants(device: torch.device, *values: int) -> torch.Tensor:
    """Return whole numbers as int32 [number] on the device; cached."""
    # A blocking copy (only once), because other streams use them too.
    return torch.tensor(values, dtype=torch.int32, device="cpu").to(device)


def power_of_two(n: int) -> int:
    """Return `n` rounded up to a power of two, so that batches of different lengths share cached tables."""
    return 1 << max(0, n - 1).bit_length()


def add_weighted(images: torch.Tensor, start: int, weights: tuple[int, int, int]) -> torch.Tensor:
    """Sum the weighted channels of uint8 [n, height, width, 3] and `start`: int32 [n, height, width]."""
    red, green, blue = images.unbind(-1)
    total = torch.add(constants(images.device, start), red, alpha=weights[0])
    return total.add_(green, alpha=weights[1]).add_(blue, alpha=weights[2])


def take_upper_half(words: torch.Tensor) -> torch.Tensor:
    """Return int32 [..., width] divided by 2**16 and rounded down, as int16: a view (little-endian), without a copy."""
    return words.view(torch.int16)[..., 1::2]


def blend(start: torch.Tensor, end: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Compute Pillow's Image.blend in float32: start + factor * (end - start), clamped to [0, 255], not rounded yet.

    Overwrites `end`. It does not use addcmul or lerp because they round once where Pillow rounds twice.
    """
    return end.sub_(start).mul_(factor).add_(start).clamp_(0, 255)


def factor_tensor(values: Floats, device: torch.device, ndim: int) -> torch.Tensor:
    return to_device(values.astype(np.float32), device).view(-1, *[1] * (ndim - 1))


def make_grey(images: torch.Tensor, _: Floats) -> None:
    """Make uint8 [n, height, width, 3] grey, in place: Pillow's mode L in three channels."""
    grey = take_upper_half(add_weighted(images, *GREY)).to(torch.uint8)
    torch.stack((grey, grey, grey), -1, out=images)


def adjust_color(images: torch.Tensor, factors: Floats) -> None:
    """Blend uint8 [n, height, width, 3] with its grey image, in place: Pillow's ImageEnhance.Color; factors: [n]."""
    channels = to_planes(images)
    mixed = blend(to_grey(channels).unsqueeze(1), channels.to(torch.float32), factor_tensor(factors, images.device, 4))
    interleave(channels.copy_(mixed), images)


def adjust_sharpness(images: torch.Tensor, factors: Floats) -> None:
    """Blend uint8 [n, height, width, 3] with a 3x3 smoothing, in place: Pillow's ImageEnhance.Sharpness; factors: [n].

    The outermost pixels are unchanged.
    """
    n, height, width, _ = images.shape
    if height < 3 or width < 3:
        return
    rows = images.view(n, height, width * 3).to(torch.int16)
    sums = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    inner = rows[:, 1:-1, 3:-3]
    sums = (sums[:, :, :-6] + sums[:, :, 3:-3]).add_(sums[:, :, 6:]).add_(inner, alpha=4)
    # The sum over 13, rounded. 6.5 keeps the sum half a step away from multiples of 13, so the inexact 1 / 13 does not
    # matter.
    smooth = sums.to(torch.float32).add_(6.5).mul_(1 / 13).floor_()
    mixed = blend(smooth, inner.to(torch.float32), factor_tensor(factors, images.device, 3))
    images.view(n, height, width * 3)[:, 1:-1, 3:-3].copy_(mixed)


@lru_cache(maxsize=8)
def hsv_tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Tabulate the conversion to Pillow's 8-bit HSV: hue, uint8 [3 * 256 * 512], and saturation, float32 [256 * 256].

    Both are flat. The hue is indexed by [largest channel, span, 255 + difference of the other two], the saturation, a
    whole number, by [value of the largest channel, span]; span is the largest value minus the smallest.
    """
    span, difference = np.arange(256)[:, None], np.arange(512)[None, :] - 255
    with np.errstate(divide="ignore", invalid="ignore"):
        # (largest - other) / span for the two other channels, the one after the largest and the one before it in the
        # circle; it is 1 for the smallest
        ahead = _to_single(np.where(difference >= 0, span - difference, span) / span)
        behind = _to_single(np.where(difference >= 0, span, span + difference) / span)
        hues = np.stack(
            [_to_single(behind - ahead), _to_single(2.0 + behind - ahead), _to_single(4.0 + behind - ahead)]
        )
        turns = _to_single(np.fmod(hues / 6.0 + 1.0, 1.0)) * 255.0
        shares = _to_single(np.arange(256)[None, :] / np.arange(256)[:, None]) * 255.0
    hue = np.where((span > 0) & (np.abs(difference) <= span), turns, 0.0).astype(np.uint8)
    saturation = np.floor(np.where(np.tri(256, dtype=np.bool_), shares, 0.0))
    saturation[0] = 0.0
    # A blocking copy (only once), because other streams use the tables too.
    return torch.from_numpy(hue).view(-1).to(device), torch.from_numpy(saturation).view(-1).to(device, torch.float32)


def _to_single(values: Floats) -> Floats:
    """Round to float32 and return float64: Pillow's C code stores a float, then computes in double."""
    return values.astype(np.float32).astype(np.float64)


def hue_shifts(turns: Floats) -> npt.NDArray[np.int64]:
    """Return the number in [0, 256) to add to an 8-bit hue in order to turn it."""
    return np.trunc(turns * 255).astype(np.int64) % 256


def hue_shares(turns: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Tabulate by 8-bit hue the share of the saturation that each channel loses, in 255ths: float32 [n, 3, 256].

    The hue is turned first, as in torchvision: by int(255 * turn), modulo 256.
    """
    hue = (np.arange(256)[None, :] + hue_shifts(turns)[:, None]) % 256
    sixths = hue * 6  # unit: 1/255 of a sixth of the circle
    parts = [(offset * 255 + sixths) % (6 * 255) for offset in (5, 3, 1)]
    return np.stack([np.clip(np.minimum(p, 4 * 255 - p), 0, 255) for p in parts], 1).astype(np.float32)


def adjust_hue(images: torch.Tensor, turns: Floats) -> None:
    """Turn the hue of uint8 [n, height, width, 3], in place, as torchvision's adjust_hue does through Pillow's HSV.

    turns: [n] in [-0.5, 0.5] of the circle.
    """
    n = len(images)
    hues, saturations = hsv_tables(images.device)
    channels = to_planes(images).to(torch.int32)
    red, green, blue = channels.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    span = value - torch.minimum(torch.minimum(red, green), blue)
    # 0 where the channel is the largest, otherwise 1. Sums and products: torch.where takes ten times as long on a CPU.
    red_behind, green_behind = (value - red).clamp_(max=1), (value - green).clamp_(max=1)
    difference = (red - green).mul_(green_behind).add_((blue - red).mul_(1 - green_behind)).mul_(red_behind)
    difference.add_((green - blue).mul_(1 - red_behind))
    largest = green_behind.add_(1).mul_(red_behind)  # 0, 1 or 2: red, green or blue
    place = largest.mul_(256).add_(span).mul_(512).add_(difference).add_(255)
    hue = hues.index_select(0, place.view(-1)).view(n, -1).to(torch.int32)
    hue.add_(torch.arange(n, dtype=torch.int32, device=images.device).mul_(3 * 256)[:, None])
    of_saturation = span.add_(value, alpha=256)
    value = value.to(torch.float32)
    colour = saturations.index_select(0, of_saturation.view(-1)).view_as(value).mul_(value)
    shares = to_device(hue_shares(turns).reshape(-1), images.device)
    result = []
    for channel in range(3):
        lost = shares[256 * channel :].index_select(0, hue.view(-1)).view_as(value)
        # rounded as value * (1 - saturation * share); the dividend is a whole number below 2**24, exact in float32
        lost.mul_(colour).add_(255 * 255 // 2).div_(255.0 * 255.0).floor_()
        result.append((value - lost).to(torch.uint8))
    torch.stack(result, -1, out=images)
