"""A JPEG of waves and noise: made by what is always installed, decoded in about the time of a photo."""

from __future__ import annotations

import numpy as np
import simplejpeg


def photo_like(height: int, width: int, seed: int = 0) -> bytes:
    """A JPEG of `height` x `width` pixels, 4:2:0, quality 90; its bytes depend on the arguments only."""
    rng = np.random.default_rng(seed)
    rows, columns = np.linspace(0, 20, height)[:, None, None], np.linspace(0, 20, width)[None, :, None]
    waves = np.sin(rows + np.arange(3) + seed) * np.cos(columns) * 90 + 128
    pixels = (waves + rng.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8)
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 90, "RGB", "420")
    return data
