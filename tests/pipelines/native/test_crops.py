"""Crops drawn by the native library: bit-exact with numpy, or left to Python."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np
import pytest

from penstock.pipelines.native.rows import ROW, NativeStage, Rows
from penstock.pipelines.plan.crops import choose_filters, native_crops, plan_views
from penstock.pipelines.spec import ImagePipeline

PIPELINES = {
    "imagenet": ImagePipeline(),
    "narrow ratio": ImagePipeline(ratio=(1, 1)),
    "large crops": ImagePipeline(scale=(0.9, 1), size=(96, 160), flip=0.1),
    "whole area": ImagePipeline(scale=(1, 1), ratio=(0.9, 1.1)),
    "tall": ImagePipeline(ratio=(0.1, 0.2)),
    "wide": ImagePipeline(ratio=(5, 10), scale=(0.5, 0.9)),
    "tiny": ImagePipeline(scale=(1e-6, 1e-4)),
    "turned": ImagePipeline(rotate90=0.75, vertical_flip=0.5),
    "filter drawn": ImagePipeline(interpolation="random"),
    "filter drawn, turned": ImagePipeline(interpolation="random", rotate90=0.75, vertical_flip=0.5),
    "filter drawn, whole": ImagePipeline(interpolation="random", crop="full", flip=0),
    "lanczos": ImagePipeline(interpolation="lanczos"),
    "seldom turned": ImagePipeline(crop="full", rotate90=0.01, vertical_flip=0.3, flip=1),
    "centre": ImagePipeline(crop="center", flip=0, size=(96, 160)),
    "centre, flipped": ImagePipeline(crop="center", center_fraction=1, size=(160, 96)),
    "small centre": ImagePipeline(crop="center", flip=0, center_fraction=0.1),
    "whole": ImagePipeline(crop="full", flip=0),
}
SIZES = [(500, 375), (375, 500), (1, 1), (3000, 1), (1, 3000), (2, 2), (7, 5), (33, 1000), (4000, 3000), (65500, 9)]
COLUMNS = (("window", "windows"), ("place", "places"), ("turn", "turns"), ("flip", "flips"))


def draw(
    native: ctypes.CDLL,
    views: tuple[ImagePipeline, ...],
    place: tuple[int, int],
    samples: Any,
    sizes: Any,
    keys: Any = None,
) -> Rows:
    """Return ROW [images, views] planned by the library; place: seed and epoch."""
    rows = np.zeros((len(samples), len(views)), ROW)
    rows["sample"], rows["row"] = np.reshape(samples, (-1, 1)), np.arange(len(samples))[:, None]
    rows["width"], rows["height"] = np.reshape(sizes[:, :1], (-1, 1)), np.reshape(sizes[:, 1:], (-1, 1))
    crops = native_crops(views, *place)
    assert crops is not None
    NativeStage(native, 2**62, apply_exif=False).plan(rows.reshape(-1), crops, keys)
    return rows


def check(rows: Rows, views: tuple[ImagePipeline, ...], place: tuple[int, int], numbers: Any, sizes: Any) -> None:
    for view in range(len(views)):
        plan = plan_views(views, *place, view, numbers, *sizes.T)
        own = rows[:, view]
        for name, column in COLUMNS:
            assert np.array_equal(own[name], getattr(plan, column)), (view, name)
        assert np.array_equal(own["interpolation"], choose_filters(views, *place, view, numbers))
        assert (own["out_height"] == views[view].size[0]).all()
        assert (own["out_width"] == views[view].size[1]).all()


@pytest.mark.parametrize("name", PIPELINES)
def test_every_draw_equals_numpys(native: ctypes.CDLL, name: str) -> None:
    rng, views = np.random.default_rng(1), (PIPELINES[name],)
    for number in range(40):
        seed, epoch = int(rng.integers(0, 2**64, dtype=np.uint64)) >> number, int(rng.integers(0, 2**32)) >> number
        sizes = np.array([*SIZES, *rng.integers(1, 700, (990, 2)).tolist()])
        samples = rng.integers(0, 2**62, 1000) >> number
        rows = draw(native, views, (seed, epoch), samples, sizes)
        assert not rows["result"].any()
        check(rows, views, (seed, epoch), samples, sizes)


def test_draws_by_views_and_keys_equal_numpys(native: ctypes.CDLL) -> None:
    views = PIPELINES["filter drawn"], PIPELINES["turned"], PIPELINES["centre, flipped"], PIPELINES["filter drawn"]
    sizes = np.random.default_rng(2).integers(1, 700, (500, 2))
    keys = np.random.default_rng(3).integers(0, 2**40, 500)
    rows = draw(native, views, (5, 6), np.arange(500), sizes, keys)
    check(rows, views, (5, 6), keys, sizes)
    assert not np.array_equal(rows["window"], draw(native, views, (5, 6), np.arange(500), sizes)["window"])


def test_a_side_that_the_last_bits_decide_is_left_to_python(native: ctypes.CDLL) -> None:
    """For 27 pixels at the aspect 3/4 the width is the root of 20.25, between 4 and 5: exp may differ from numpy's."""
    views = (ImagePipeline(scale=(1, 1), ratio=(0.75, 0.75)),)
    rows = draw(native, views, (0, 0), np.arange(2), np.array([(9, 3), (9, 4)]))
    assert rows["result"][:, 0].tolist() == [1, 0]
    exact = (ImagePipeline(scale=(0.25, 0.25), ratio=(1, 1)),)  # exp(0) is 1 everywhere
    sizes = np.array([(side, side) for side in range(1, 400, 2)])
    rows = draw(native, exact, (0, 0), np.arange(len(sizes)), sizes)
    assert not rows["result"].any()
    check(rows, exact, (0, 0), np.arange(len(sizes)), sizes)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-(2**31), 4), (2**31 - 1, 2**31 - 1), (2**20 + 1, 1)])
@pytest.mark.parametrize("name", ["imagenet", "turned", "centre", "whole"])
def test_sizes_that_no_image_has_are_left_to_python(native: ctypes.CDLL, name: str, size: tuple[int, int]) -> None:
    assert draw(native, (PIPELINES[name],), (0, 0), np.arange(1), np.array([size]))["result"].tolist() == [[1]]


def test_ratios_beyond_all_integers_are_left_to_python(native: ctypes.CDLL) -> None:
    for ratio in ((1e-300, 1e-290), (1e290, 1e300), (1e5, 1e25), (1e-25, 1e-5)):
        rows = draw(native, (ImagePipeline(ratio=ratio),), (0, 0), np.arange(50), np.array([(50, 40)] * 50))
        assert rows["result"].all()


def test_other_crops_are_drawn_by_numpy_alone() -> None:
    placed = [
        ImagePipeline(crop="random"),
        ImagePipeline(crop="letterbox"),
        ImagePipeline(crop="center", shorter_side=256),
        ImagePipeline(crop="five"),
    ]
    for pipeline in placed:
        assert native_crops((PIPELINES["imagenet"], pipeline), 0, 0) is None
    assert native_crops((dataclasses.replace(placed[0], crop="full"),), 0, 0) is not None
