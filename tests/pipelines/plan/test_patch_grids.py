"""The grid of patches of an image: the largest that fits in a sequence, with the image's aspect."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from penstock.pipelines.plan.patch_grids import fit_grids, plan_patches
from penstock.pipelines.spec import ImagePipeline

SIDES = np.array([800, 96]), np.array([96, 800])


RATIOS = (None, 1.0, 0.25)


def search(width: int, height: int, patch: int, length: int) -> list[tuple[int, int]]:
    """Return the grids by definition: the largest that fits, over all scales with a side of whole patches."""
    scales = [Fraction(k * patch, side) for side in (width, height) for k in range(1, length + 1)]

    def grid(scale: Fraction) -> tuple[int, int]:
        return max(1, math.ceil(width * scale / patch)), max(1, math.ceil(height * scale / patch))

    best = max(scale for scale in scales if math.prod(grid(scale)) <= length)
    return [grid(best if most is None else min(best, Fraction(most))) for most in RATIOS]


@pytest.mark.parametrize(("patch", "length"), [(16, 196), (14, 37), (8, 1), (1, 50)])
def test_a_grid_is_the_largest_that_fits(patch: int, length: int) -> None:
    draw = np.random.default_rng(length)
    widths, heights = draw.integers(1, 700, (2, 150))
    widths[:4], heights[:4] = (1, 9000, 224, 448), (9000, 1, 224, 224)
    found = np.stack([fit_grids(widths, heights, patch, length, most) for most in RATIOS], 1).tolist()
    for width, height, grids in zip(widths.tolist(), heights.tolist(), found, strict=True):
        assert list(map(tuple, grids)) == search(width, height, patch, length)


def test_a_crop_keeps_the_aspect_of_its_image_times_the_ratio() -> None:
    widths, heights = np.array([900, 90, 300] * 300), np.array([90, 900, 300] * 300)
    pipeline = ImagePipeline(scale=(0.2, 0.9), ratio=(0.8, 1.25))
    plan = plan_patches(pipeline, (16, 100, None), 1, 0, 0, np.arange(900), widths, heights)
    aspects = plan.windows[:, 2] / plan.windows[:, 3] / (widths / heights)
    assert np.abs(np.quantile(aspects, [0.05, 0.5, 0.95]) - [0.82, 1, 1.22]).max() < 0.05  # log-uniform in ratio
    areas = plan.windows[:, 2] * plan.windows[:, 3] / (widths * heights)
    assert 0.19 < areas.min() < 0.25
    assert 0.8 < areas.max() < 0.91
    whole = plan_patches(ImagePipeline(crop="center", flip=0), (16, 100, None), 1, 0, 0, np.arange(2), *SIDES)
    assert whole.windows.tolist() == [[50, 6, 700, 84], [6, 50, 84, 700]]
    assert whole.places.tolist() == [[0, 0, 400, 48], [0, 0, 48, 400]]


def test_the_largest_centred_crop_is_used_if_no_crop_of_the_ratio_fits() -> None:
    pipeline = ImagePipeline(scale=(1.0, 1.0), ratio=(0.5, 0.5), flip=0)
    plan = plan_patches(pipeline, (16, 64, None), 1, 0, 0, np.arange(2), *SIDES)
    assert plan.windows.tolist() == [[200, 0, 400, 96], [24, 0, 48, 800]]
