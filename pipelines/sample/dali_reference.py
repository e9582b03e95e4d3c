"""Makes the images of DALI's tasks with our own decoder, and measures how much DALI's differ from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from penstock.pipelines.image_types import Pixels
from penstock.pipelines.sample.dali_graph import CropTask
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.resize import RESIZERS, write_sample
from penstock.pipelines.spec import ImagePipeline


class Distance(NamedTuple):
    """Hold how much two images differ or may differ, in uint8 levels.

    Attributes:
        mean: mean of the absolute differences.
        p99_9: their 99.9th percentile.
    """

    mean: float
    p99_9: float

    def within(self, limit: Distance) -> bool:
        """Return whether both figures are at most those of `limit`."""
        return self.mean <= limit.mean and self.p99_9 <= limit.p99_9


# Limits for one image. On a GPU the IDCT, the upsampling and the resize are the device's own: twice what `penstock
# parity` allows over many images. Another image, crop or colour order differs by more.
ON_CPU, ON_GPU = Distance(1.0, 4.0), Distance(4.0, 32.0)


class DaliReference:
    """Make images of tasks; an instance belongs to one thread."""

    def __init__(self, pipeline: ImagePipeline, decoder: str = "auto") -> None:
        self._decoder = ImageDecoder(pipeline, decoder, judge=True)
        self._resize, self._size = RESIZERS[pipeline.resample], pipeline.size

    def image(self, task: CropTask) -> Pixels | None:
        """Return the image, uint8 [height, width, 3]; None if libjpeg repaired it, since decoders repair differently.

        Raises LoaderError if our decoder rejects the data.
        """
        if isinstance(task.data, np.ndarray) and not task.coded:
            pixels = task.data
        else:
            data = bytes(task.data)
            pixels = self._decoder.window(data, self._decoder.probe(data), task.window)
            if self._decoder.repair:
                return None
        made = torch.empty((1, *(task.size or self._size), 3), dtype=torch.uint8, device="cpu")
        write_sample(pixels, made.permute(0, 3, 1, 2), task.flip, self._resize)
        return made[0].numpy()


def distance(first: Pixels, second: Pixels) -> Distance:
    """Return how much two images of the same shape differ."""
    levels = np.abs(first.astype(np.int16) - second)
    return Distance(float(levels.mean()), float(np.quantile(levels, 0.999)))
