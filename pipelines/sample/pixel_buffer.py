"""Memory for a decoder's pixels: reused for the next image, unless it is large."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Eleven megapixels. Larger memory is kept only while images stay as large: otherwise a single photo of 40 megapixels
# would cost each worker 150 MB for its lifetime.
_KEPT_BYTES = 32 << 20


class PixelMemory:
    """Provides memory for one image at a time; belongs to one thread."""

    def __init__(self) -> None:
        self._kept = np.empty(0, np.uint8)

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return at least `num_bytes` of memory (uint8), valid until the next call."""
        if self._kept.size > _KEPT_BYTES and self._kept.size > 2 * num_bytes:
            self._kept = np.empty(0, np.uint8)
        if self._kept.size < num_bytes:
            self._kept = np.empty(num_bytes if num_bytes > _KEPT_BYTES else num_bytes * 5 // 4, np.uint8)
        return self._kept
