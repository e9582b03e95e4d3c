"""Definitions of each kind of sample for all loaders that sample_rates.py measures; imports nothing of Penstock."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

BATCH, WORKERS, SIZE = 64, 2, 224
# Size and share of the image's area of each view; its aspect is 3/4 to 4/3, and it is mirrored with probability 1/2.
VIEWS = [(224, (0.4, 1.0))] * 2 + [(96, (0.05, 0.4))] * 6
WHOLE = (0.08, 1.0)  # the share for a single view


def shift_colors(image: np.ndarray[Any, Any], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return floats [3, height, width] with random gain and offset of each channel: a usual transform in numpy."""
    pixels = image.astype(np.float32) * generator.uniform(0.8, 1.2, 3).astype(np.float32)
    pixels += generator.uniform(-20, 20, 3).astype(np.float32)
    return np.ascontiguousarray(np.clip(pixels, 0, 255).transpose(2, 0, 1))


def tokenize(text: str, length: int = 77) -> np.ndarray[Any, Any]:
    """Return int64 [length], a number for each word: cheap, so that loaders are compared and not tokenizers."""
    numbers = [zlib.crc32(word.encode()) % 49408 for word in text.lower().split()[:length]]
    return np.pad(np.array(numbers, np.int64), (0, length - len(numbers)))


def count_rate(batches: Iterator[Any], settle_s: float, counted_s: float) -> float:
    """Return images per second, counted after the batches that a loader made ahead."""
    started = time.perf_counter()
    while time.perf_counter() - started < settle_s:
        next(batches)
    done, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < counted_s:
        next(batches)
        done += BATCH
    return done / passed
