"""Pixels of image targets without a value, as in depth maps, are never mixed with others."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from odd_images import encoded
from PIL import Image

from penstock.loaders import ImageTargets, create_loader, with_fields
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.sources.contract import field_kinds_of
from penstock.pipelines.fields.pictures import place_window, resize_present
from penstock.pipelines.resampling import find_nearest, resize
from penstock.pipelines.spec import Augmentations, ImagePipeline

COUNT, HEIGHT, WIDTH = 4, 24, 34
IMAGES = (np.zeros((COUNT, HEIGHT, WIDTH, 3), np.uint8), np.arange(COUNT))
NEAR, FAR = 2000, 20_000  # levels of the depth maps
ENGINES: dict[str, dict[str, Any]] = {
    "in the process": {"workers": 0},
    "processes": {"workers": 1, "workers_are": "processes"},
    "hdf5": {"workers": 0, "backend": "hdf5"},
    "dali": {"workers": 0, "backend": "dali"},
}
Array = npt.NDArray[Any]


def depth_maps(share: float = 0.4, dtype: Any = np.uint16, missing: float = 0) -> Array:
    """Return maps [COUNT, HEIGHT, WIDTH] in which a share of the pixels is missing."""
    rng = np.random.default_rng(0)
    values = rng.integers(NEAR, FAR, (COUNT, HEIGHT, WIDTH)).astype(dtype)
    values[rng.random(values.shape) < share] = missing
    return values


def weights_of(length: int, count: int, interpolation: str) -> Array:
    """Return the weight of each of `length` pixels in each of `count` outputs."""
    return resize(np.eye(length, dtype=np.float32)[:, :, None], (count, length), interpolation)[..., 0]


def mean_of_present(values: Array, size: tuple[int, int], interpolation: str, missing: float) -> Array:
    """The reference: values [h, w] in float64, NaN for missing ones."""
    there = ~np.isnan(values) if missing != missing else values != missing
    rows, columns = (weights_of(length, count, interpolation) for length, count in zip(values.shape, size, strict=True))
    sums = rows @ np.where(there, values, 0).astype(np.float64) @ columns.T
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums / (weights := rows @ there.astype(np.float64) @ columns.T)
    under = np.ix_(*(find_nearest(length, count) for length, count in zip(values.shape, size, strict=True)))
    return np.where(there[under], np.where(weights > 0, means, values[under]), np.nan)


def test_values_are_the_means_of_present_ones() -> None:
    rng = np.random.default_rng(0)
    for number, (interpolation, dtype, share) in enumerate(
        itertools.product(("bilinear", "box"), (np.uint8, np.uint16, np.float32), (0.02, 0.4, 0.95))
    ):
        missing = (0, math.nan if dtype == np.float32 else np.iinfo(dtype).max)[number % 2]
        for _ in range(20):
            values = rng.integers(1, 255, rng.integers(2, 40, 2)).astype(dtype) * dtype(1 if dtype == np.uint8 else 200)
            values[rng.random(values.shape) < share] = missing
            size = (int(rng.integers(1, 60)), int(rng.integers(1, 60)))
            found = resize_present(values[:, :, None], size, interpolation, missing)[..., 0]
            wanted = mean_of_present(values, size, interpolation, missing)
            is_missing = found != found if missing != missing else found == missing
            assert (is_missing == np.isnan(wanted)).all()
            assert found.dtype == dtype
            error = np.abs(found[~is_missing].astype(np.float64) - wanted[~is_missing])
            bound = 0.02 * np.abs(wanted[~is_missing]) * 0.01 + (0.51 if dtype == np.float32 else 1.01)
            assert (error <= bound).all(), (interpolation, dtype, values.shape, size)


def test_without_missing_values_nothing_changes() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(1, 65535, (31, 47, 2)).astype(np.uint16)
    for size in ((31, 47), (12, 90), (5, 7)):
        for interpolation in ("bilinear", "box", "nearest"):
            assert (resize_present(values, size, interpolation, 0) == resize(values, size, interpolation)).all()


def test_outside_the_image_is_missing() -> None:
    out = np.full((10, 10, 1), 7, np.uint16)
    place_window(np.full((4, 4, 1), 500, np.uint16), (2, 3, 5, 6), out, 0, False, (0,), "bilinear", 0)
    assert sorted(set(out.ravel().tolist())) == [0, 500]
    assert (out[3:9, 2:7] == 500).all()


def served(source: Any, **settings: Any) -> torch.Tensor:
    options: dict[str, Any] = {"batch_size": COUNT, "dtype": torch.uint8, "shuffle": False, **settings}
    with create_loader(source, **options) as loader:
        return next(iter(loader))["depth"]


def is_mixed(levels: torch.Tensor) -> bool:
    """Return whether some values are neither missing nor between the nearest and the farthest one."""
    return bool(((levels.int() != 0) & ((levels.int() < NEAR) | (levels.int() > FAR))).any())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "pipeline",
    [
        ImagePipeline(size=(10, 14), crop="center", center_fraction=1.0, flip=0.0),
        ImagePipeline(size=(50, 40), crop="random_resized", scale=(0.2, 1.0)),
        ImagePipeline(size=(30, 30), crop="letterbox"),
        ImagePipeline(size=(16, 16), rotate90=0.75, augment=Augmentations(auto_augment="rand")),
    ],
)
def test_every_engine_and_crop_keeps_missing_values_apart(engine: str, pipeline: ImagePipeline, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"pipeline": pipeline, **ENGINES[engine]}
    if engine == "hdf5":
        settings["cache"] = tmp_path / "c.h5"
    maps = depth_maps()
    levels = served(with_fields(IMAGES, depth=ImageTargets(maps, missing=0)), **settings)
    assert levels.dtype == torch.uint16
    assert not is_mixed(levels)
    assert 0 < (levels.int() > 0).float().mean() < 1
    if engine == "in the process":  # otherwise they are mixed
        assert is_mixed(served(with_fields(IMAGES, depth=ImageTargets(maps, interpolation="bilinear")), **settings))


def test_ranges_nan_and_caches(tmp_path: Path) -> None:
    pipeline = ImagePipeline(size=(10, 14), crop="center", center_fraction=1.0, flip=0.0)
    metres = ImageTargets(depth_maps(), missing=0, range=(0, 65535 / 256))
    depth = served(with_fields(IMAGES, depth=metres), pipeline=pipeline, workers=0)
    assert ((depth == 0) | (depth >= NEAR / 256)).all()
    holes = with_fields(IMAGES, depth=ImageTargets(depth_maps(0.1, np.float32, math.nan), missing=math.nan))
    found = served(holes, pipeline=pipeline, workers=0)
    assert 0 < found.isnan().float().mean() < 0.3
    source = with_fields(IMAGES, depth=ImageTargets(depth_maps(), missing=0))
    build_cache(source, tmp_path / "c.h5", workers=0)
    cache = open_cache(tmp_path / "c.h5")
    assert field_kinds_of(cache) == field_kinds_of(source)
    assert (served(cache, pipeline=pipeline, workers=0) == served(source, pipeline=pipeline, workers=0)).all()
    build_cache(holes, tmp_path / "h.h5", workers=0)
    assert field_kinds_of(open_cache(tmp_path / "h.h5")) == field_kinds_of(holes)


def test_missing_is_part_of_the_identity() -> None:
    specs = [{}, {"missing": 0}, {"missing": 65535}, {"missing": 0, "interpolation": "nearest"}]
    prints = [with_fields(IMAGES, depth=ImageTargets(depth_maps(0), **each)).fingerprint for each in specs]
    assert len(set(prints)) == 4
    assert with_fields(IMAGES, depth=ImageTargets(depth_maps(0), interpolation="bilinear")).fingerprint == prints[0]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"interpolation": "bicubic"}, "missing needs interpolation 'bilinear', 'box' or 'nearest', got 'bicubic'"),
        ({"interpolation": "lanczos"}, "negative weights"),
        ({"fill": 9}, "either fill or missing"),
        ({"missing": 70_000}, "missing of image targets must be"),
        ({"missing": math.nan}, "missing of image targets must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        with_fields(IMAGES, depth=ImageTargets(depth_maps(), **{"missing": 0, **spec}))


def warned(where: Any, **spec: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with_fields(IMAGES, depth=ImageTargets(where, **spec))
    return [str(each.message) for each in seen]


def test_targets_that_look_like_depth_maps_are_named(tmp_path: Path) -> None:
    maps = depth_maps()
    files = []
    for number, each in enumerate(maps):
        files.append(str(tmp_path / f"{number}.png"))
        Path(files[-1]).write_bytes(encoded(Image.fromarray(each), "PNG"))
    for where in (maps, files, maps.astype(np.float32)):
        (text,) = warned(where)
        assert text.startswith("field 'depth': the targets contain 0 and no other value below 2")
        assert "pass ImageTargets(..., missing=0), or interpolation='bilinear' if 0 is a value" in text
        for spec in ({"missing": 0}, {"interpolation": "nearest"}, {"interpolation": "bilinear"}):
            assert warned(where, **spec) == []


def test_other_targets_give_no_warning() -> None:
    rng = np.random.default_rng(0)
    shape = (COUNT, HEIGHT, WIDTH)
    photos = rng.integers(0, 65536, shape).astype(np.uint16)
    photos[:, :4] = 0  # a black border
    photos[0, 5, 5] = 3
    assert warned(photos) == []
    assert warned(depth_maps(0)) == []  # nothing is 0
    for high in (90, 199, 256):  # dark images
        images = rng.integers(0, high, shape).astype(np.uint8)
        for each in (images, np.where(images < 4, 0, images), images.astype(np.float32) / 3):
            assert warned(each) == []
    assert warned(((rng.random(shape) < 0.5) * 255).astype(np.uint8)) == []  # a mask
    assert warned(rng.normal(0, 1, shape).astype(np.float32)) == []
    assert warned(np.zeros(shape, np.uint16)) == []
    assert warned(np.where(depth_maps() == 0, np.nan, depth_maps()).astype(np.float32)) == []
