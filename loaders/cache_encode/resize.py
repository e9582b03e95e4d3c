"""Images shrunk to the size that a lossy cache stores."""

from __future__ import annotations

import numpy as np
import torch

from penstock.loaders.cache.format import Encoding
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.sample.resize import resize_torch


def shrunk_size(width: int, height: int, encoding: Encoding) -> tuple[int, int]:
    """(width, height) in pixels after the encoding's resize: aspect kept, sides at least 1, never enlarged.

    The other side is rounded down, as torchvision's Resize and FFCV do.
    """
    given = max(width, height) if encoding.longer_side else min(width, height)
    target = encoding.resize
    if target is None or given <= target:
        return width, height
    return max(1, width * target // given), max(1, height * target // given)


def shrunk(pixels: Pixels, encoding: Encoding) -> Pixels:
    """The image, uint8 [h, w, 3], antialiased and contiguous; itself where it is small enough."""
    width, height = shrunk_size(pixels.shape[1], pixels.shape[0], encoding)
    if (height, width) == pixels.shape[:2]:
        return np.ascontiguousarray(pixels)
    slot = torch.empty((1, 3, height, width), dtype=torch.uint8, memory_format=torch.channels_last)
    resize_torch(pixels, slot)
    return np.ascontiguousarray(slot.permute(0, 2, 3, 1)[0].numpy())
