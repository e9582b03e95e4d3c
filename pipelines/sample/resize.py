"""Antialiased resize and horizontal flip of one crop, written straight into the batch's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from penstock.pipelines.image_types import Pixels

Resize = Callable[[Pixels, torch.Tensor], None]


# The kernel that functional.interpolate dispatches to, with an `out=` argument. It is a private name, which a future
# torch may not have.
_ATEN_OUT: Any | None = getattr(getattr(torch.ops.aten, "_upsample_bilinear2d_aa", None), "out", None)


def as_nchw(pixels: Pixels) -> torch.Tensor:
    """Return pixels as a channels_last tensor [1, 3, height, width] that shares their memory if it is contiguous."""
    # torch warns about read-only memory, and rejects negative strides, even of an axis of length 1.
    shared = pixels.flags.writeable and pixels.flags.c_contiguous and min(pixels.strides) >= 0
    return torch.from_numpy(pixels if shared else pixels.copy()).permute(2, 0, 1).unsqueeze(0)


def resize_torch(pixels: Pixels, slot: torch.Tensor) -> None:
    """Resize uint8 [h, w, 3], antialiased and bilinear, into `slot`: uint8 [1, 3, height, width], channels_last."""
    size = tuple(slot.shape[-2:])
    if _ATEN_OUT is not None:
        _ATEN_OUT(as_nchw(pixels), size, False, None, None, out=slot)
    else:  # one allocation and one copy more
        slot.copy_(functional.interpolate(as_nchw(pixels), size=size, mode="bilinear", antialias=True))


def resize_pillow(pixels: Pixels, slot: torch.Tensor) -> None:
    """Resize as resize_torch does, with Pillow's kernel, or Pillow-SIMD's where that is installed."""
    from PIL import Image

    height, width = slot.shape[-2:]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    slot.permute(0, 2, 3, 1)[0].numpy()[...] = resized


RESIZERS: dict[str, Resize] = {"torch": resize_torch, "pillow": resize_pillow}


def write_sample(pixels: Pixels, slot: torch.Tensor, flip: bool, resize: Resize) -> None:
    """Resize `pixels` into `slot`, as resize_torch describes them, and flip it left to right if `flip`."""
    if pixels.shape[:2] == tuple(slot.shape[-2:]):
        slot.copy_(as_nchw(pixels))
    else:
        resize(pixels, slot)
    if flip:
        # torch.flip has a vectorised path for channels_last; numpy takes ten times as long.
        slot.copy_(torch.flip(slot, (3,)))
