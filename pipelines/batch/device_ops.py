"""Operations for devices, bit-exact with the CPU versions, with fewer kernels and a third of the memory traffic.

On a CPU the other versions are faster: its caches cannot hold these tables, and its kernels accept only one type.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch.color import (
    GREY,
    add_weighted,
    constants,
    factor_tensor,
    hsv_tables,
    hue_shares,
    power_of_two,
    take_upper_half,
)
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import Floats


def compute_places(fixed: npt.NDArray[np.int32], images: torch.Tensor) -> torch.Tensor:
    """Compute the source pixel in the framed images for each pixel, int32 [n, height, width]; fixed: [6, n, 1, 1]."""
    n, height, width, _ = images.shape
    x, y = np.arange(width, dtype=np.int32), np.arange(height, dtype=np.int32)[:, None]
    first = np.arange(n, dtype=np.int32)[:, None, None] * ((height + 2) * (width + 2)) + (width + 3)
    along_x, along_y, first_pixel = (
        to_device(part, images.device) for part in (fixed[[0, 3]] * x, fixed[[1, 4]] * y + fixed[[2, 5]], first)
    )
    column, row = take_upper_half(torch.add(along_x, along_y)).unbind()
    place = torch.add(first_pixel, row.clamp(-1, height), alpha=width + 2)
    return place.add_(column.clamp(-1, width))


def adjust_sharpness(images: torch.Tensor, factors: Floats) -> None:
    """Blend uint8 [n, height, width, 3] with a 3x3 smoothing, in place, as color.adjust_sharpness; factors: [n]."""
    n, height, width, _ = images.shape
    if height < 3 or width < 3:
        return
    flat = images.view(n, height, width * 3)
    rows, inner = flat.to(torch.int16), flat[:, 1:-1, 3:-3]
    sums = (rows[:, :-2] + rows[:, 1:-1]).add_(rows[:, 2:])
    sums = (sums[:, :, :-6] + sums[:, :, 3:-3]).add_(sums[:, :, 6:]).add_(inner, alpha=4)
    # The sum over 13, rounded: 5042 / 2**16 is close enough to 1 / 13 for all sums up to 13 * 255.
    smooth = take_upper_half(torch.mul(sums, constants(images.device, 5042)).add_(30464))
    mixed = torch.sub(inner, smooth).mul(factor_tensor(factors, images.device, 3))
    inner.copy_(mixed.add_(smooth).clamp_(0, 255))


_MAX_IMAGES = 256  # per call: an image's number is one byte of the index into the table


def adjust_color(images: torch.Tensor, factors: Floats) -> None:
    """Blend uint8 [n, height, width, 3] with its grey image, in place: Pillow's ImageEnhance.Color; factors: [n].

    The result depends on the value and its pixel's grey level: a table of 2**16 results per image.
    """
    for first in range(0, len(images), _MAX_IMAGES):
        _adjust_color(images[first : first + _MAX_IMAGES], factors[first : first + _MAX_IMAGES])


def _adjust_color(images: torch.Tensor, factors: Floats) -> None:
    n, device = len(images), images.device
    # A word has 255 - grey in its upper half; its lower half is 256 times the image's number, plus the value.
    start, weights = 255 * 65536 + 65535 - GREY[0], tuple(-weight for weight in GREY[1])
    words = add_weighted(images, start, weights)  # type: ignore[arg-type]  # of three
    numbers = (np.arange(n) * 256).astype(np.uint16).view(np.int16)
    words.view(torch.int16)[..., ::2] = to_device(numbers, device)[:, None, None]
    products = factors.astype(np.float32)[:, None] * np.arange(-255, 256, dtype=np.float32)
    of_grey = to_device(products, device).as_strided((256, n, 256), (1, 511, 1))  # [255 - grey, image, value]
    tables = torch.empty((256, 256, 256), dtype=torch.uint8, device=device)
    tables[:, :n] = torch.add(of_grey, _falling_levels(device)).clamp_(0, 255)
    place = torch.add(words[..., None], images)
    torch.index_select(tables.view(-1), 0, place.view(-1), out=images.view(-1))


@lru_cache(maxsize=8)
def _falling_levels(device: torch.device) -> torch.Tensor:
    # A blocking copy (only once), because other streams use it too; also below.
    return torch.from_numpy(np.arange(255, -1, -1, dtype=np.float32)[:, None, None]).to(device)


def adjust_hue(images: torch.Tensor, turns: Floats) -> None:
    """Turn the hue of uint8 [n, height, width, 3], in place, as color.adjust_hue does; turns: [n]."""
    n, height, width, _ = images.shape
    hues, spans = _tabulate_hue_and_span(images.device)
    difference = add_weighted(images, 255 * 511 + 255, (511, -510, -1)).view(-1)  # red - green, and green - blue
    words = torch.zeros((n, height, width), dtype=torch.int32, device=images.device)
    parts = words.view(torch.uint8).view(n, height, width, 4)
    parts[..., 0] = spans.index_select(0, difference).view(n, height, width)
    torch.amax(images, -1, out=parts[..., 1])
    turned = torch.add(_image_offsets(images.device, power_of_two(n))[:n], hues.index_select(0, difference).view(n, -1))
    shares = to_device(hue_shares(turns).astype(np.uint8).transpose(0, 2, 1), images.device)
    lost = shares.view(-1, 3).index_select(0, turned.view(-1)).view(images.shape)
    place = torch.add(words[..., None], lost, alpha=65536)
    torch.index_select(_tabulate_by_share(images.device), 0, place.view(-1), out=images.view(-1))


@lru_cache(maxsize=8)
def _image_offsets(device: torch.device, n: int) -> torch.Tensor:
    return torch.arange(0, 256 * n, 256, dtype=torch.int32, device="cpu").to(device)[:, None]


@lru_cache(maxsize=8)
def _tabulate_hue_and_span(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Tabulate hue and span by [255 + red - green, 255 + green - blue]: uint8 [511 * 511] each."""
    ahead, behind = np.mgrid[-255:256, -255:256]
    red, green, blue = ahead + behind, behind, np.zeros_like(behind)
    lowest = np.minimum(np.minimum(red, green), blue)
    red, green, blue = red - lowest, green - lowest, blue - lowest
    span = np.maximum(np.maximum(red, green), blue)
    largest = np.where(red == span, 0, np.where(green == span, 1, 2))
    difference = np.choose(largest, (green - blue, blue - red, red - green))
    possible = span <= 255
    place = np.where(possible, (largest * 256 + span) * 512 + difference + 255, 0)
    hue = hsv_tables(torch.device("cpu"))[0].numpy()[place]
    return tuple(
        torch.from_numpy(np.where(possible, table, 0).astype(np.uint8).reshape(-1)).to(device) for table in (hue, span)
    )  # type: ignore[return-value]


@lru_cache(maxsize=8)
def _tabulate_by_share(device: torch.device) -> torch.Tensor:
    """Tabulate what remains of the largest channel's value: uint8 [2**24], by [share that it loses, value, span].

    Computed on the device, in whole numbers, so that it is the same on every processor.
    """
    saturation = hsv_tables(device)[1].view(256, 256).to(torch.int32)
    levels = torch.arange(256, dtype=torch.int32, device=device)
    colour = saturation * levels[:, None]
    result = torch.empty((256, 256, 256), dtype=torch.uint8, device=device)
    for share in range(256):  # in pieces: otherwise 64 MB of intermediate results
        torch.sub(levels[:, None], (colour * share).add_(255 * 255 // 2).floor_divide_(255 * 255), out=result[share])
    if device.type == "cuda":  # other streams use it too
        torch.cuda.current_stream(device).synchronize()
    return result.view(-1)
