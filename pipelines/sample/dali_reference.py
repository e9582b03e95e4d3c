"""Makes the images of DALI's tasks with our own decoder, and measures how much DALI's images differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.image_types import INTERPOLATIONS, Pixels
from penstock.pipelines.resampling import FILTERS
from penstock.pipelines.sample.dali_graph import CropTask
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.resize import RESIZERS, write_sample
from penstock.pipelines.spec import ImagePipeline


class Distance(NamedTuple):
    """Difference of two images, or a limit for it, in uint8 levels.

    Attributes:
        mean: mean of the absolute differences.
        p99_9: 99.9th percentile of the absolute differences.
        edge: how much larger the mean is in an outermost row or column.
    """

    mean: float
    p99_9: float
    edge: float

    def within(self, limit: Distance) -> bool:
        """Return whether each figure is at most that of `limit`."""
        return all(mine <= allowed for mine, allowed in zip(self, limit, strict=True))

    def __str__(self) -> str:
        return (
            f"{self.mean:.1f} levels from libjpeg's pixels on average, 99.9 % within {self.p99_9:.0f}, "
            f"{self.edge:.1f} more on average in an outermost row or column"
        )


# Limits for one image. On a CPU the largest values of 1,200 crops of 200 photos, resized to 16 to 448 pixels, were
# 0.014, 1 and 0.06. With wrong edges (see loaders/dali/dali_versions.py) 4 % of 250 had an edge above 0.5. Not measured
# on a GPU, which has its own IDCT, upsampling and resize. A wrong image, crop or colour order differs by more.
ON_CPU, ON_GPU = Distance(0.25, 2.0, 0.5), Distance(4.0, 32.0, 1.0)


class DaliReference:
    """Makes the images of tasks; an instance belongs to one thread."""

    def __init__(self, pipeline: ImagePipeline, decoder: str = "auto") -> None:
        self._decoder = ImageDecoder(pipeline, decoder, judge=True)
        self._resize, self._size = RESIZERS[pipeline.resample], pipeline.output_size

    def image(self, task: CropTask) -> Pixels | None:
        """Return our pipeline's image, uint8 [height, width, 3].

        None if libjpeg repaired it, since decoders repair differently. Raises LoaderError if our decoder rejects the
        data.
        """
        pixels = self._window(task)
        if pixels is None:
            return None
        made = torch.empty((1, *(task.size or self._size), 3), dtype=torch.uint8, device="cpu")
        slot, name = made.permute(0, 3, 1, 2), INTERPOLATIONS[task.interpolation]
        write_sample(pixels, slot, task.flip, self._resize, interpolation=name)
        return made[0].numpy()

    def expected(self, task: CropTask) -> Pixels | None:
        """Return the image that DALI should make: like `image`, but resized with DALI's rule for the borders."""
        pixels = self._window(task)
        if pixels is None:
            return None
        made = resize_as_dali(pixels, task.size or self._size, INTERPOLATIONS[task.interpolation])
        return made[:, ::-1] if task.flip else made

    def _window(self, task: CropTask) -> Pixels | None:
        if isinstance(task.data, np.ndarray) and not task.coded:
            return task.data
        data = bytes(task.data)
        pixels = self._decoder.window(data, self._decoder.probe(data), task.window)
        return None if self._decoder.repair else pixels


def resize_as_dali(pixels: Pixels, size: tuple[int, int], interpolation: str = "bilinear") -> Pixels:
    """Return `pixels`, uint8 [h, w, 3], resized antialiased to (height, width).

    At the borders the outermost pixels are repeated. torch omits pixels beyond the border, which changes an outermost
    row by up to 20 levels and would hide errors of a decoder.
    """
    levels = pixels.astype(np.float32)
    for length in size:  # rows, then columns: each leaves the other axis first
        levels = _resize_rows(levels, length, interpolation).swapaxes(0, 1)
    return np.rint(levels).clip(0, 255).astype(np.uint8)


def _resize_rows(levels: npt.NDArray[np.float32], size: int, interpolation: str) -> npt.NDArray[np.float32]:
    """Resize [rows, ...] to float32 [size, ...], without BLAS: its threads would compete with the loader's."""
    scale, (support, weigh) = len(levels) / size, FILTERS[interpolation]
    radius = support * max(scale, 1.0)
    centres = (np.arange(size) + 0.5) * scale - 0.5
    first, num_taps = np.ceil(centres - radius).astype(np.int64), int(2 * radius) + 1
    weights = weigh((first + np.arange(num_taps)[:, None] - centres) / max(scale, 1.0))  # [taps, size]
    weights = (weights / weights.sum(0)).astype(np.float32)[..., None, None]
    made = np.zeros((size, *levels.shape[1:]), np.float32)
    for tap in range(num_taps):
        made += weights[tap] * levels[(first + tap).clip(0, len(levels) - 1)]
    return made


def distance(first: Pixels, second: Pixels) -> Distance:
    """Return the difference of two images of the same shape."""
    levels = np.abs(first.astype(np.int16) - second)
    mean = float(levels.mean())
    edge = max(float(line.mean()) for line in (levels[0], levels[-1], levels[:, 0], levels[:, -1]))
    return Distance(mean, float(np.quantile(levels, 0.999)), edge - mean)
