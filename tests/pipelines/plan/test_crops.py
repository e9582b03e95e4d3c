"""Crop, turn and flip draws: torchvision's rules, a pure function of (seed, epoch, index, view), inside the image."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from penstock.pipelines.image_types import TRANSPOSED, UPSIDE_DOWN
from penstock.pipelines.plan import crops as plan
from penstock.pipelines.plan.crops import BatchPlan, plan_batch
from penstock.pipelines.plan.philox import STREAM_CROP, random_words, uniforms
from penstock.pipelines.spec import ImagePipeline

SIZES = [(500, 375), (375, 500), (1, 1), (3000, 1), (1, 3000), (2, 2), (7, 5), (33, 1000), (4000, 3000), (10_000, 9)]
RECIPES = {
    "imagenet": ImagePipeline(),
    "narrow ratio": ImagePipeline(ratio=(1, 1)),
    "large crops": ImagePipeline(scale=(0.9, 1)),
    "whole area": ImagePipeline(scale=(1, 1), ratio=(0.9, 1.1)),
    "tall": ImagePipeline(ratio=(0.1, 0.2)),
    "wide": ImagePipeline(ratio=(5, 10), scale=(0.5, 0.9)),
    "tiny": ImagePipeline(scale=(1e-6, 1e-4)),
}


def draw(pipeline: ImagePipeline, size: tuple[int, int], n: int, *, seed: int = 7, epoch: int = 3) -> BatchPlan:
    """Return plans of n samples of equal size (width, height)."""
    return plan_batch(pipeline, seed, epoch, np.arange(n), np.full(n, size[0]), np.full(n, size[1]))


def torchvision_fallback(width: int, height: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """The end of torchvision.transforms.RandomResizedCrop.get_params, as (x, y, width, height)."""
    in_ratio = width / height
    if in_ratio < min(ratio):
        w, h = width, round(width / min(ratio))
    elif in_ratio > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


def scalar_crop(
    pipeline: ImagePipeline, width: int, height: int, draws: list[float]
) -> tuple[tuple[int, int, int, int], bool]:
    """Return RandomResizedCrop.get_params for uniforms instead of torch's generator; and whether all ten tries failed.

    draws: flip, x, y, unused, then (area, aspect) of each try.
    """
    tries = draws[4:]
    log_ratio = [math.log(r) for r in pipeline.ratio]
    for attempt in range(10):
        low, high = pipeline.scale
        target = width * height * (low + (high - low) * tries[2 * attempt])
        aspect = math.exp(log_ratio[0] + (log_ratio[1] - log_ratio[0]) * tries[2 * attempt + 1])
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            # torch.randint(0, width - w + 1)
            return (math.floor(draws[1] * (width - w + 1)), math.floor(draws[2] * (height - h + 1)), w, h), False
    return torchvision_fallback(width, height, pipeline.ratio), True


@pytest.mark.parametrize("name", RECIPES)
def test_random_resized_crop_follows_torchvision(name: str) -> None:
    pipeline = RECIPES[name]
    rng = np.random.default_rng(0)
    sizes = np.array([*SIZES, *rng.integers(1, 700, (140, 2)).tolist()])
    index = np.arange(len(sizes))
    drawn = plan_batch(pipeline, 11, 5, index, sizes[:, 0], sizes[:, 1])
    uniform = uniforms(random_words(11, 5, index, STREAM_CROP, 24)).tolist()
    for (width, height), draws, window, flip in zip(
        sizes.tolist(), uniform, drawn.windows.tolist(), drawn.flips.tolist(), strict=True
    ):
        expected, fell_back = scalar_crop(pipeline, width, height, draws)
        if fell_back:  # torchvision's formula may round to 0 pixels, ours to at least 1
            expected = (*expected[:2], max(1, expected[2]), max(1, expected[3]))
            expected = ((width - expected[2]) // 2, (height - expected[3]) // 2, *expected[2:])
        assert tuple(window) == expected, (width, height)
        assert flip is (draws[0] < pipeline.flip)


@pytest.mark.parametrize("word", [0, 2**32 - 1])
@pytest.mark.parametrize("name", RECIPES)
def test_the_ends_of_the_range_of_draws_are_valid(name: str, word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def constant(seed: int, epoch: int, index: np.ndarray, stream: int, count: int) -> np.ndarray:
        return np.full((len(index), count), word, np.uint64)

    monkeypatch.setattr(plan, "random_words", constant)
    for size in SIZES:
        never, always = (draw(dataclasses.replace(RECIPES[name], flip=flip), size, 2) for flip in (0.0, 1.0))
        assert not never.flips.any()
        assert always.flips.all()
        x, y, w, h = never.windows[0].tolist()
        assert 0 <= x <= x + w <= size[0]
        assert 0 <= y <= y + h <= size[1]


def test_the_crop_setting_does_not_change_the_flips() -> None:
    flips = [draw(ImagePipeline(crop=crop), (64, 48), 500).flips for crop in ("random_resized", "center", "full")]
    assert np.array_equal(flips[0], flips[1])
    assert np.array_equal(flips[0], flips[2])


@pytest.mark.parametrize(
    ("size", "target", "fraction", "expected"),
    [
        ((500, 375), (224, 224), 0.875, (86, 23, 328, 328)),
        ((375, 500), (224, 224), 0.875, (23, 86, 328, 328)),
        ((256, 256), (224, 224), 0.875, (16, 16, 224, 224)),
        ((256, 256), (224, 224), 1.0, (0, 0, 256, 256)),
        ((100, 100), (50, 100), 1.0, (0, 25, 100, 50)),
        ((100, 100), (100, 50), 1.0, (25, 0, 50, 100)),
        ((1, 1), (224, 224), 0.5, (0, 0, 1, 1)),
        ((3000, 1), (224, 224), 0.875, (1499, 0, 1, 1)),
        ((1, 3000), (224, 224), 0.875, (0, 1499, 1, 1)),
        ((5, 5), (10, 1000), 0.875, (0, 2, 4, 1)),
    ],
)
def test_centre_crop(
    size: tuple[int, int], target: tuple[int, int], fraction: float, expected: tuple[int, int, int, int]
) -> None:
    pipeline = ImagePipeline(crop="center", size=target, center_fraction=fraction, flip=0)
    assert draw(pipeline, size, 2).windows.tolist() == [list(expected)] * 2


@pytest.mark.parametrize(
    ("pipeline", "digest"),
    [
        (ImagePipeline(), "888424acafa8dec1"),
        (ImagePipeline(size=(96, 160), scale=(0.9, 1), ratio=(5, 10), flip=0.1), "812321aa93da81d9"),
        (ImagePipeline(crop="center"), "07ed23a4f96850f9"),
        (ImagePipeline(crop="full", flip=0), "8a6d8be6eef8fe28"),
    ],
)
def test_streams_equal_those_of_earlier_versions(pipeline: ImagePipeline, digest: str) -> None:
    widths, heights = np.random.default_rng(3).integers(1, 700, (2, 200))
    found = hashlib.blake2b(digest_size=8)
    for seed, epoch in ((0, 0), (2**63 + 5, 9)):
        drawn = plan_batch(pipeline, seed, epoch, np.arange(200) * 2**33 // 7, widths, heights)
        found.update(drawn.windows.astype("<i4").tobytes())
        found.update(np.packbits(drawn.flips).tobytes())
        assert not drawn.turns.any()
        assert (drawn.places == (0, 0, *pipeline.size[::-1])).all()
    assert found.hexdigest() == digest


def test_views_draw_independently_and_the_first_equals_a_single_view() -> None:
    index, sides = np.arange(2000), np.full(2000, 400)
    views = [plan_batch(ImagePipeline(), 1, 2, index, sides, sides, view=view) for view in (0, 1, 2, 255)]
    assert all(map(np.array_equal, views[0], plan_batch(ImagePipeline(), 1, 2, index, sides, sides)))
    for one, other in itertools.combinations(views, 2):
        assert (one.windows == other.windows).all(1).mean() < 0.01
        assert abs(np.corrcoef(one.windows[:, 0], other.windows[:, 0])[0, 1]) < 0.1
        assert 0.45 < (one.flips == other.flips).mean() < 0.55


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rotate90": 0.75, "flip": 0}, {(k, False): 0.25 for k in range(4)}),
        ({"rotate90": 0.3, "flip": 0}, {(0, False): 0.7, (1, False): 0.1, (2, False): 0.1, (3, False): 0.1}),
        ({"rotate90": 1, "flip": 0.4}, {(k, flip): (0.2, 0.4 / 3)[flip] for k in (1, 2, 3) for flip in (False, True)}),
        ({"vertical_flip": 0.2, "flip": 0}, {(0, False): 0.8, (2, True): 0.2}),
        ({"vertical_flip": 1, "flip": 1}, {(2, False): 1.0}),
    ],
)
def test_turns_are_rotations_and_flips_with_their_probabilities(
    settings: dict[str, Any], expected: dict[tuple[int, bool], float]
) -> None:
    """Names of turns: quarters counter-clockwise (np.rot90), and whether the result is mirrored."""
    numbers, count = np.arange(9).reshape(3, 3), 4000
    names = {np.rot90(numbers, k)[:, :: -1 if flip else 1].tobytes(): (k, flip) for k in range(4) for flip in (0, 1)}
    drawn, found = draw(ImagePipeline(**settings), (50, 40), count), Counter[tuple[int, bool]]()
    for turn, flip in zip(drawn.turns.tolist(), drawn.flips.tolist(), strict=True):
        image = numbers.T if turn & TRANSPOSED else numbers
        image = image[::-1] if turn & UPSIDE_DOWN else image
        found[names[image[:, :: -1 if flip else 1].tobytes()]] += 1
    assert set(found) == set(expected)
    assert {name: number / count for name, number in found.items()} == pytest.approx(expected, abs=0.03)
