"""Sizes of images that are cut into patches: as large as a sequence of patches allows, with their own aspect."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.pipelines.plan.crops import BatchPlan, plan_batch
from penstock.pipelines.plan.placed_crops import Ints
from penstock.pipelines.spec import ImagePipeline

PATCH_CROPS = ("random_resized", "center", "full")


def fit_grids(widths: Ints, heights: Ints, patch: int, length: int, max_ratio: float | None = None) -> Ints:
    """Return columns and rows of patches, int64 [n, 2], that images of these sizes are scaled to.

    An image is scaled with its aspect to the largest size that has at most `length` patches, with sides rounded up to
    whole patches, and enlarged at most `max_ratio` times. timm's get_image_size_for_seq searches for the same size;
    integers avoid its rounding.
    """
    columns, rows = _largest_grids(length)
    w, h = widths[:, None], heights[:, None]
    # A grid fits the image at a scale of min(columns / w, rows / h) patches per pixel; times w * h this is an integer.
    scale = np.minimum(columns * h, rows * w).max(1)
    grids: Ints = np.stack((-(-scale // heights), -(-scale // widths)), 1)
    if max_ratio is not None:
        most = np.ceil(np.stack((widths, heights), 1) * (max_ratio / patch)).astype(np.int64)  # at least 1
        grids = np.minimum(grids, most)
    return grids


@lru_cache(maxsize=64)
def _largest_grids(length: int) -> tuple[Ints, Ints]:
    """Return columns and rows of the grids of at most `length` patches that do not fit in a larger such grid."""
    columns = np.arange(1, length + 1, dtype=np.int64)
    rows, last = np.unique((length // columns)[::-1], return_index=True)
    return columns[::-1][last], rows


def plan_patches(
    pipeline: ImagePipeline,
    grid: tuple[int, int, float | None],
    seed: int,
    epoch: int,
    view: int,
    index: npt.NDArray[np.int64],
    widths: Ints,
    heights: Ints,
) -> BatchPlan:
    """Draw crop and flip of each image; the crop keeps the image's aspect, its place starts at 0 and is a whole image.

    grid: patch, length and max_ratio of fit_grids; the rest is as for plan_batch. A crop's aspect is a draw from the
    pipeline's `ratio` times the image's aspect, as in timm's RandomResizedCropToSequence.
    """
    drawn = plan_batch(pipeline, seed, epoch, index, widths, heights, view=view, keeps_aspect=True)
    sides = drawn.windows[:, 2:].astype(np.int64)
    places = np.zeros((len(index), 4), np.int32)
    places[:, 2:] = grid[0] * fit_grids(sides[:, 0], sides[:, 1], *grid)
    return drawn._replace(places=places)
