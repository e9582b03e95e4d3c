"""Operations in the native library, for a CPU: bit-exact with color.py, lookup_tables.py and blur.py.

A call processes all its images without the interpreter lock, so that the threads of the batch stage do not wait.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numpy as np
import torch

from penstock.pipelines.batch.blur import weigh_taps
from penstock.pipelines.batch.color import hsv_tables, hue_shifts
from penstock.pipelines.native.library import native_library
from penstock.pipelines.plan.augmentations import Floats


def library_for(images: torch.Tensor) -> ctypes.CDLL | None:
    """Return the native library if it is there and can change these images in their memory."""
    return native_library() if images.device.type == "cpu" and images.is_contiguous() else None


def _size(images: torch.Tensor) -> tuple[int, int]:
    """Return the number of images, and of pixels in each."""
    return len(images), images.shape[1] * images.shape[2]


def make_grey(library: ctypes.CDLL, images: torch.Tensor, _: Floats) -> None:
    """See color.make_grey."""
    library.pn_grey(images.data_ptr(), images.numel() // 3)


def adjust_color(library: ctypes.CDLL, images: torch.Tensor, factors: Floats) -> None:
    """See color.adjust_color."""
    singles = factors.astype(np.float32)
    library.pn_adjust_color(images.data_ptr(), *_size(images), singles.ctypes.data)


def adjust_sharpness(library: ctypes.CDLL, images: torch.Tensor, factors: Floats) -> None:
    """See color.adjust_sharpness."""
    source, singles = images.clone(), factors.astype(np.float32)
    library.pn_adjust_sharpness(source.data_ptr(), images.data_ptr(), *images.shape[:3], singles.ctypes.data)


def adjust_hue(library: ctypes.CDLL, images: torch.Tensor, turns: Floats) -> None:
    """See color.adjust_hue."""
    hues, saturations = _hsv_bytes()
    shifts = hue_shifts(turns).astype(np.int32)
    library.pn_turn_hue(images.data_ptr(), *_size(images), shifts.ctypes.data, hues.data_ptr(), saturations.data_ptr())


@lru_cache(maxsize=1)
def _hsv_bytes() -> tuple[torch.Tensor, torch.Tensor]:
    hues, saturations = hsv_tables(torch.device("cpu"))
    return hues, saturations.to(torch.uint8)


def blur(library: ctypes.CDLL, images: torch.Tensor, sigmas: Floats) -> None:
    """See blur.blur_each."""
    n, height, width, _ = images.shape
    weights = weigh_taps(sigmas)
    taps = weights.shape[1]
    memory = np.empty(2 * 3 * width * (height + 2 * (taps - 1)), np.uint8)
    library.pn_blur(images.data_ptr(), n, height, width, weights.ctypes.data, taps, memory.ctypes.data)


def look_up(library: ctypes.CDLL, images: torch.Tensor, tables: torch.Tensor) -> None:
    """See lookup_tables.look_up."""
    library.pn_look_up(images.data_ptr(), *_size(images), tables.data_ptr())


def sum_grey(library: ctypes.CDLL, images: torch.Tensor) -> torch.Tensor:
    """Return the sum of each image's grey levels, float64 [n]."""
    sums = np.empty(len(images), np.int64)
    library.pn_sum_grey(images.data_ptr(), *_size(images), sums.ctypes.data)
    return torch.from_numpy(sums.astype(np.float64))


def count_levels(library: ctypes.CDLL, images: torch.Tensor) -> torch.Tensor:
    """Return how often each level occurs in each channel, int32 [n, 3, 256]."""
    counts = torch.empty((len(images), 3, 256), dtype=torch.int32, device="cpu")
    library.pn_count_levels(images.data_ptr(), *_size(images), counts.data_ptr())
    return counts
