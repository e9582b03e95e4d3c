"""Memory that a decoder writes its pixels to: reused for the next image, unless it is large."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_KEPT_BYTES = 150_000_000  # 50 megapixels, as of cameras; an image of 100 would cost each worker 375 MB forever


class PixelMemory:
    """Hand out memory for one image at a time; belongs to one thread."""

    def __init__(self) -> None:
        self._kept = np.empty(0, np.uint8)

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return at least `num_bytes` of memory (uint8), which the next call may hand out again."""
        if num_bytes > _KEPT_BYTES:
            return np.empty(num_bytes, np.uint8)
        if self._kept.size < num_bytes:
            self._kept = np.empty(num_bytes * 5 // 4, np.uint8)
        return self._kept
