"""Antialiased resize of one crop into the batch's memory, followed by turn and flip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from penstock.pipelines.image_types import TRANSPOSED, UPSIDE_DOWN, Levels, Pixels, Window
from penstock.pipelines.resampling import FAST_CHANNELS, as_nchw, paste, resize_into
from penstock.pipelines.resampling import resize as resize_levels

Resize = Callable[[Pixels, torch.Tensor, str], None]


def resize_pillow(pixels: Pixels, slot: torch.Tensor, interpolation: str = "bilinear") -> None:
    """Resize as resize_into does, with Pillow's kernel (Pillow-SIMD's if installed)."""
    from PIL import Image

    height, width = slot.shape[-2:]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    resized = np.asarray(image.resize((width, height), Image.Resampling[interpolation.upper()]))
    slot.permute(0, 2, 3, 1)[0].numpy()[...] = resized


RESIZERS: dict[str, Resize] = {"torch": resize_into, "pillow": resize_pillow}


def to_depth(pixels: Levels, dtype: np.dtype[Any]) -> Levels:
    """Convert pixels between uint8 and uint16 (`dtype`), so that white stays white, or to float32 unchanged."""
    if pixels.dtype == dtype or dtype == np.float32:
        return pixels.astype(dtype, copy=False)
    return pixels.astype(np.uint16) * np.uint16(257) if dtype == np.uint16 else (pixels >> 8).astype(np.uint8)


def to_grey(pixels: Levels) -> Levels:
    """Convert [h, w, 3] to [h, w, 1] of the same type as Pillow converts to mode L; grey keeps its levels."""
    red, green, blue = pixels.astype(np.uint32).transpose(2, 0, 1)  # 65536 * 65535 + 32768 has 32 bits
    grey: Levels = (red * np.uint32(19595) + green * np.uint32(38470) + blue * np.uint32(7471) + np.uint32(32768)) >> 16
    return grey.astype(pixels.dtype)[:, :, None]


def write_sample(
    pixels: Levels,
    slot: torch.Tensor,
    flip: bool,
    resize: Resize,
    place: Window | None = None,
    turn: int = 0,
    fill: tuple[int | float, ...] = (0, 0, 0),
    interpolation: str = "bilinear",
) -> None:
    """Resize `pixels` into `slot`, turn the result, and mirror it left to right if `flip`.

    pixels: uint8, uint16 or float32 [h, w, channels]. slot: [1, channels, height, width], channels_last, of one of
    these types; with one channel, three channels become grey. place: x, y, width, height of the target area, of which
    only a part may lie in the slot; None for the whole slot. The rest of the slot becomes `fill`, levels 0 to 255 of
    red, green and blue, or for as many channels as the slot has; for float32 levels of its own scale. turn: TRANSPOSED
    and UPSIDE_DOWN. interpolation: one of INTERPOLATIONS.
    """
    channels, height, width = slot.shape[1:]
    x, y, w, h = place or (0, 0, width, height)
    is_grey = channels == 1 and pixels.shape[2] == 3
    is_direct = not is_grey and channels <= FAST_CHANNELS and slot.dtype == torch.uint8 and pixels.dtype == np.uint8
    if (x, y, w, h) == (0, 0, width, height) and is_direct:
        _resize_to(pixels, slot, resize, interpolation)
    else:
        canvas = slot.permute(0, 2, 3, 1)[0].numpy()
        levels = to_depth(pixels, canvas.dtype)
        if levels.dtype != np.uint8 or channels > FAST_CHANNELS:
            levels = resize_levels(levels, (h, w), interpolation)
        elif levels.shape[:2] != (h, w):
            resized = torch.empty((1, h, w, levels.shape[2]), dtype=torch.uint8, device="cpu")
            resize(levels, resized.permute(0, 3, 1, 2), interpolation)
            levels = resized[0].numpy()
        if max(x, 0) + max(y, 0) or x + w < width or y + h < height:
            kind = np.float32 if canvas.dtype == np.float32 else np.uint8
            colour = to_depth(np.array(fill, kind).reshape(1, 1, -1), canvas.dtype)
            canvas[...] = to_grey(colour) if channels == 1 and len(fill) == 3 else colour
        paste(to_grey(levels) if is_grey else levels, canvas, x, y)
    _turn(slot, flip, turn)


def _resize_to(pixels: Pixels, slot: torch.Tensor, resize: Resize, interpolation: str) -> None:
    if pixels.shape[:2] == tuple(slot.shape[-2:]):
        slot.copy_(as_nchw(pixels))
    else:
        resize(pixels, slot, interpolation)


def _turn(slot: torch.Tensor, flip: bool, turn: int) -> None:
    reversed_axes = [axis for axis, is_reversed in ((2, turn & UPSIDE_DOWN), (3, flip)) if is_reversed]
    if not (reversed_axes or turn):
        return
    moved = slot.view(torch.int16) if slot.dtype == torch.uint16 else slot  # torch can move few types
    turned = moved.transpose(2, 3) if turn & TRANSPOSED else moved
    # torch.flip has a vectorised path for channels_last; numpy takes ten times as long.
    moved.copy_(torch.flip(turned, reversed_axes) if reversed_axes else turned.clone())
