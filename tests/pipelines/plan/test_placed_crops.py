"""Crops of scaled and padded images: torchvision's algorithms, written out for one image at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from penstock.pipelines.plan.crops import BatchPlan, plan_batch
from penstock.pipelines.plan.philox import STREAM_CROP, random_words, uniforms
from penstock.pipelines.spec import ImagePipeline

NUMBER = 1000
Box = tuple[float, float, float, float]


def resize(width: int, height: int, shorter: int) -> tuple[int, int]:
    """torchvision.transforms.functional._compute_resized_output_size."""
    short, long = (width, height) if width <= height else (height, width)
    longer = int(shorter * long / short)
    return (shorter, longer) if width <= height else (longer, shorter)


def random_crop(side: int, size: int, padding: int, draw: float) -> int:
    """Return where torchvision's RandomCrop(size, padding, pad_if_needed=True) begins on one axis of the image."""
    before, padded = padding, side + 2 * padding
    if padded < size:
        before, padded = before + size - padded, padded + 2 * (size - padded)
    return math.floor(draw * (padded - size + 1)) - before  # torch.randint(0, padded - size + 1)


def centre_crop(side: int, size: int) -> int:
    """One axis of torchvision's center_crop."""
    return -((size - side) // 2) if side < size else round((side - size) / 2.0)


def scaled_and_cropped(
    pipeline: ImagePipeline, width: int, height: int, draws: list[float], view: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the size of the resized image and the crop's start in it; draws: from plan_batch, for one sample."""
    out_h, out_w = pipeline.size
    fit = min(out_h / height, out_w / width)
    _, draw_x, draw_y, _, draw_scale = draws[:5]
    if pipeline.crop == "letterbox":  # Ultralytics' LetterBox
        w, h = max(1, round(width * fit)), max(1, round(height * fit))
        spare = (out_w - w) / 2, (out_h - h) / 2
        corner = [-round(each - 0.1) for each in spare] if pipeline.align == "center" else [0, 0]
    elif pipeline.crop == "scale_jitter":  # torchvision's ScaleJitter and FixedSizeCrop, with a draw for each axis
        low, high = pipeline.jitter
        fit *= low + (high - low) * draw_scale
        w, h = max(1, int(width * fit)), max(1, int(height * fit))
        corner = []
        for side, size, draw in ((w, out_w, draw_x), (h, out_h, draw_y)):
            pad = (size - side) // 2 if pipeline.align == "center" else 0
            corner.append(math.floor(draw * (side - size + 1)) if side >= size else -pad)
    else:
        w, h = width, height
        if pipeline.shorter_side is not None:
            low, high = pipeline.shorter_side_range
            w, h = resize(width, height, low + math.floor(draw_scale * (high - low + 1)))
        if pipeline.crop == "random":
            corner = [random_crop(w, out_w, pipeline.padding, draw_x), random_crop(h, out_h, pipeline.padding, draw_y)]
        else:
            corner = five_crop(w, h, out_w, out_h)[view % 5 if pipeline.crop in ("five", "ten") else 4]
            if pipeline.crop == "ten" and view >= 5:  # of the mirrored image
                corner = [w - out_w - corner[0], corner[1]]
    return (w, h), (corner[0], corner[1])


def five_crop(w: int, h: int, out_w: int, out_h: int) -> list[list[int]]:
    """Return the corners of torchvision's five_crop; images that it refuses as too small are centred."""
    centre = [centre_crop(w, out_w), centre_crop(h, out_h)]
    right, bottom = (w - out_w, h - out_h)
    corners = [[0, 0], [right, 0], [0, bottom], [right, bottom], centre]
    return [[x if w >= out_w else centre[0], y if h >= out_h else centre[1]] for x, y in corners]


def expected(
    pipeline: ImagePipeline, width: int, height: int, draws: list[float], view: int
) -> tuple[Box, tuple[int, int, int, int]]:
    """Return the part of the image in the crop: left, top, right, bottom in exact source pixels; and its place."""
    (w, h), (x, y) = scaled_and_cropped(pipeline, width, height, draws, view)
    out_h, out_w = pipeline.size
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + out_w, w), min(y + out_h, h)
    box = (left * width / w, top * height / h, right * width / w, bottom * height / h)
    return box, (left - x, top - y, right - left, bottom - top)


def resized_first(pipeline: ImagePipeline, width: int, height: int, view: int) -> tuple[int, int, int, int]:
    """Return where the whole resized image is: transforms_imagenet_eval of timm, and torchvision's FiveCrop."""
    out_h, out_w = pipeline.size
    target = [math.floor(side / pipeline.center_fraction) for side in pipeline.size]
    if pipeline.shorter_side is not None:
        w, h = resize(width, height, pipeline.shorter_side[0])
    elif pipeline.crop == "full":
        w, h = target[1], target[0]
    elif pipeline.crop == "letterbox" or target[0] != target[1]:  # ResizeKeepRatio
        ratios = height / target[0], width / target[1]
        w, h = (
            max(1, round(side / (max if pipeline.crop == "letterbox" else min)(ratios))) for side in (width, height)
        )
    else:
        w, h = resize(width, height, target[0])
    x, y = five_crop(w, h, out_w, out_h)[view % 5 if pipeline.crop in ("five", "ten") else 4]
    if pipeline.align == "top_left":
        x, y = max(x, 0), max(y, 0)
    if pipeline.align == "center_down":  # center_crop of transformers 5
        x, y = int((w - out_w) / 2.0), int((h - out_h) / 2.0)
    return -(w - out_w - x if view >= 5 else x), -y, w, h


RESIZED_FIRST: dict[str, dict[str, Any]] = {
    "square": {"crop": "center", "size": (224, 224)},
    "not square": {"crop": "center", "size": (101, 140), "center_fraction": 0.95},
    "shorter side": {"crop": "center", "size": (99, 90), "shorter_side": 101},
    "rounded down": {"crop": "center", "size": (99, 99), "center_fraction": 0.9, "align": "center_down"},
    "ten": {"crop": "ten", "size": (99, 80), "shorter_side": 120},
    "full": {"crop": "full", "size": (99, 80), "center_fraction": 0.71},
    "letterbox": {"crop": "letterbox", "size": (99, 80), "center_fraction": 0.7},
    "letterbox at the top left": {"crop": "letterbox", "size": (99, 80), "align": "top_left"},
}


@pytest.mark.parametrize("name", RESIZED_FIRST)
def test_a_thousand_whole_images_have_the_places_of_timm(name: str) -> None:
    pipeline, large = ImagePipeline(**RESIZED_FIRST[name], resize_first=True, flip=0), 0
    widths, heights = sides_of(NUMBER)
    for view in range(pipeline.num_views):
        drawn = plan_batch(pipeline, 11, 5, np.arange(NUMBER), widths, heights, view=view)
        for row, (width, height) in enumerate(zip(widths.tolist(), heights.tolist(), strict=True)):
            assert drawn.windows[row].tolist() == [0, 0, width, height]
            place = resized_first(pipeline, width, height, view)
            if max(place[2:]) > 1 << 20 or place[2] * place[3] > 1 << 28:
                large += 1
                assert (drawn.places[row, 2:] > 1 << 20).all()
            else:
                assert tuple(drawn.places[row].tolist()) == place, (width, height)
        assert drawn.flips.tolist() == [view >= 5] * NUMBER
    assert (large > 0) is (name in ("square", "not square", "shorter side", "rounded down", "ten"))


CROPS: dict[str, dict[str, Any]] = {
    "cifar": {"crop": "random", "size": (32, 32), "padding": 4},
    "random": {"crop": "random", "size": (180, 96)},
    "random of a resized image": {"crop": "random", "size": (64, 96), "shorter_side": 100, "padding": 9},
    "segmentation": {"crop": "random", "size": (120, 120), "shorter_side": (60, 240)},
    "centre": {"crop": "center", "size": (224, 224), "shorter_side": 256, "flip": 0},
    "small centre": {"crop": "center", "size": (101, 140), "shorter_side": 60},
    "five": {"crop": "five", "size": (99, 100), "shorter_side": 128},
    "ten": {"crop": "ten", "size": (100, 128), "shorter_side": 120, "flip": 0},
    "detection": {"crop": "scale_jitter", "size": (160, 160)},
    "detection, as torchvision pads": {"crop": "scale_jitter", "size": (160, 200), "align": "top_left"},
    "letterbox": {"crop": "letterbox", "size": (160, 128), "flip": 0},
    "letterbox at the top left": {"crop": "letterbox", "size": (64, 64), "align": "top_left"},
}


def sides_of(number: int) -> np.ndarray:
    """Return widths and heights, including narrow and tiny ones: int64 [2, number]."""
    rng = np.random.default_rng(number)
    return np.concatenate(
        (
            rng.integers(1, 500, (2, number - 20)),
            rng.integers(1, 5, (2, 10)),
            np.stack((rng.integers(1, 9, 10), rng.integers(1000, 60_000, 10))),
        ),
        1,
    )


@pytest.mark.parametrize("name", CROPS)
def test_a_thousand_crops_equal_torchvisions(name: str) -> None:
    pipeline = ImagePipeline(**CROPS[name])
    index, (widths, heights) = np.arange(NUMBER), sides_of(NUMBER)
    for view in range(pipeline.num_views):
        drawn = plan_batch(pipeline, 11, 5, index, widths, heights, view=view)
        stream = STREAM_CROP + 256 * view
        draws = uniforms(random_words(11, 5, index, stream, 24)).tolist()
        for row, (width, height) in enumerate(zip(widths.tolist(), heights.tolist(), strict=True)):
            box, place = expected(pipeline, width, height, draws[row], view)
            assert tuple(drawn.places[row].tolist()) == place, (width, height)
            x, y, w, h = drawn.windows[row].tolist()
            assert 0 <= x < x + w <= width
            assert 0 <= y < y + h <= height
            for edge, exact, length in ((x, box[0], w), (y, box[1], h), (x + w, box[2], w), (y + h, box[3], h)):
                assert abs(edge - exact) <= (0.5 if length > 1 else 1), (width, height, box)
            if pipeline.shorter_side is None and pipeline.crop == "random":
                assert (x, y, x + w, y + h) == box
        flips = [row[0] < pipeline.flip for row in draws]
        assert drawn.flips.tolist() == [flip ^ (view >= 5) for flip in flips]


def test_five_and_ten_crops_of_a_share_of_the_image() -> None:
    """Without shorter_side the crops have the size of the window of "center"."""

    def windows(crop: str, view: int) -> BatchPlan:
        pipeline = ImagePipeline(crop=crop, size=(20, 20), center_fraction=0.5, flip=0)  # type: ignore[arg-type]
        return plan_batch(pipeline, 0, 0, np.arange(1), np.array([61]), np.array([41]), view=view)

    five = [[0, 0], [41, 0], [0, 21], [41, 21], [20, 10]]
    assert [windows("five", view).windows[0].tolist() for view in range(5)] == [[*xy, 20, 20] for xy in five]
    mirrored = [five[1], five[0], five[3], five[2], [21, 10]]
    ten = [windows("ten", view) for view in range(10)]
    assert [plan.windows[0].tolist() for plan in ten] == [[*xy, 20, 20] for xy in five + mirrored]
    assert [bool(plan.flips[0]) for plan in ten] == [False] * 5 + [True] * 5
