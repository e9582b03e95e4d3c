"""Measures how far a lossy cache is from its source: PSNR of the evaluation crops."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch

from penstock.loaders.data.sources.source_faults import call_source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.plan.crops import plan_batch
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.resize import RESIZERS, write_sample
from penstock.pipelines.spec import imagenet_eval

MAX_PSNR_DB = 99.0  # for equal images: in a mean, infinity would hide every other image
SAMPLE_IMAGES = 64
_PIPELINE = imagenet_eval(224)


class Readable(Protocol):
    """Anything with read(index), such as a source or a cache."""

    def read(self, index: int) -> bytes | Pixels:
        """Read an encoded image, or pixels [h, w, 3]."""
        ...


def sample_indices(num_images: int) -> list[int]:
    """Return at most SAMPLE_IMAGES numbers below `num_images`, at equal distances."""
    count = min(num_images, SAMPLE_IMAGES)
    return [i * num_images // count for i in range(count)]


def psnr_db(a: Pixels, b: Pixels) -> float:
    """Return the peak signal-to-noise ratio of two uint8 images of one shape, in dB; MAX_PSNR_DB if equal."""
    error = float(np.mean(np.square(a.astype(np.float64) - b)))
    return min(MAX_PSNR_DB, 10 * math.log10(255**2 / error)) if error else MAX_PSNR_DB


def sample_psnr(source: Readable, cache: Readable, indices: Iterable[int], *, first: int = 0) -> float | None:
    """Return the mean PSNR in dB between source and cache for images `indices` of the source.

    It is measured on a centre crop of 224 pixels, without EXIF. The cache's image is number `index - first`. Images
    that cannot be decoded are left out; None if none is left. Raises LoaderError if a file cannot be read.
    """
    decoder = ImageDecoder(_PIPELINE)
    found = []
    for index in indices:
        original, stored = call_source(source.read, index), cache.read(index - first)
        try:
            expected = _serve(decoder, original)
            found.append(psnr_db(expected, _serve(decoder, stored)))
        except LoaderError as error:
            if error.code == "E-DEPENDENCY":
                raise
    return float(np.mean(found)) if found else None


def _serve(decoder: ImageDecoder, data: bytes | Pixels) -> Pixels:
    """Return the image as the sample stage produces it, uint8 [height, width, 3]."""
    pixels = data if isinstance(data, np.ndarray) else decoder.full(data)
    width, height = (np.array([side]) for side in (pixels.shape[1], pixels.shape[0]))
    x, y, w, h = plan_batch(_PIPELINE, 0, 0, np.zeros(1, np.int64), width, height).windows[0].tolist()
    slot = torch.empty(
        (1, 3, *_PIPELINE.output_size), dtype=torch.uint8, device="cpu", memory_format=torch.channels_last
    )
    write_sample(pixels[y : y + h, x : x + w], slot, False, RESIZERS[_PIPELINE.resample])
    served: Pixels = slot.permute(0, 2, 3, 1)[0].numpy()
    return served
