"""The plan of the sample stage: how each sample is cropped and turned, a function of (seed, epoch, index, view)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from penstock.pipelines.image_types import INTERPOLATIONS, TRANSPOSED, UPSIDE_DOWN, Interpolation
from penstock.pipelines.native.rows import CENTRE, CROPS, RANDOM_RESIZED, WHOLE, Crops
from penstock.pipelines.plan.philox import STREAM_CROP, random_words, uniforms, view_stream
from penstock.pipelines.plan.placed_crops import (
    Ints,
    choose_corner,
    fit_whole,
    is_mirrored_view,
    place_crops,
    place_whole,
)
from penstock.pipelines.spec import ImagePipeline

_TRIES = 10  # torchvision.transforms.RandomResizedCrop.get_params
# Columns of a sample's draws; each try needs two. New draws use new columns, so that the others do not change.
_FLIP, _X, _Y, _VERTICAL, _FIRST_TRY = range(5)
_SCALE, _ROTATION = _FIRST_TRY, _FIRST_TRY + 2 * _TRIES
_INTERPOLATION = _ROTATION + 1
# Quarter turns counter-clockwise (np.rot90), each as a turn and a flag for mirroring left to right afterwards.
_QUARTERS = np.array([(0, 0), (TRANSPOSED | UPSIDE_DOWN, 0), (UPSIDE_DOWN, 1), (TRANSPOSED, 1)], np.uint8)

_NATIVE_KINDS = {"random_resized": RANDOM_RESIZED, "center": CENTRE, "full": WHOLE}


class BatchPlan(NamedTuple):
    """How to make the image of each sample of a batch: resize its window to its place, then turn the whole image.

    Attributes:
        windows: x, y, width, height of the crop, int32 [batch, 4], in pixels of the image (upright if EXIF is applied).
        flips: whether the result is finally mirrored left to right, bool [batch].
        places: x, y, width, height in the output image to which the crop is resized, int32 [batch, 4], in pixels; the
            rest of the output image is filled with one colour. With resize_first a place extends beyond the output
            image, which shows a part of it.
        turns: uint8 [batch], TRANSPOSED (rows become columns; square images only) and UPSIDE_DOWN, in this order.
    """

    windows: npt.NDArray[np.int32]
    flips: npt.NDArray[np.bool_]
    places: npt.NDArray[np.int32]
    turns: npt.NDArray[np.uint8]


def plan_batch(
    pipeline: ImagePipeline,
    seed: int,
    epoch: int,
    index: npt.NDArray[np.int64],
    widths: Ints,
    heights: Ints,
    *,
    view: int = 0,
    keeps_aspect: bool = False,
) -> BatchPlan:
    """Draw crop, turn and flip of each sample of a batch.

    index: numbers of the samples in the data set, int64 [batch]; widths, heights: of their images, int64 [batch] in
    pixels; view: number of the view: views have independent draws, and the view selects the crop for "five" and "ten";
    keeps_aspect: crops have the aspect of their image, times a draw from `ratio`. Raises ValueError for a seed, epoch
    or view out of range, as `random_words` does.
    """
    if pipeline.random:
        count = _INTERPOLATION if pipeline.rotate90 > 0 else _ROTATION
        draws = uniforms(random_words(seed, epoch, index, view_stream(STREAM_CROP, view), count))
    else:
        draws = np.zeros((len(index), _ROTATION))
    flips, turns = _draw_turns(pipeline, draws, view)
    if pipeline.size is None:
        places: npt.NDArray[np.int32] = fit_whole(pipeline, widths, heights)
    else:
        places = np.broadcast_to(np.array((0, 0, pipeline.size[1], pipeline.size[0]), np.int32), (len(index), 4))
    is_share = keeps_aspect or not pipeline.keeps_scale
    if pipeline.resize_first:
        windows, places = place_whole(pipeline, widths, heights, view)
    elif pipeline.crop == "random_resized":
        windows = _draw_windows(pipeline, draws, widths, heights, keeps_aspect=keeps_aspect)
    elif pipeline.crop in ("full", "none"):
        windows = np.stack((np.zeros_like(widths), np.zeros_like(heights), widths, heights), 1)
        places = places if pipeline.crop == "full" else windows.astype(np.int32)
    elif pipeline.crop in ("center", "five", "ten") and pipeline.shorter_side is None and is_share:
        windows = _centred_windows(pipeline, widths, heights, view, keeps_aspect=keeps_aspect)
    else:
        windows, places = place_crops(pipeline, widths, heights, draws[:, (_SCALE, _X, _Y)], view)
    return BatchPlan(windows.astype(np.int32), flips, places, turns)


def plan_views(
    pipelines: Sequence[ImagePipeline],
    seed: int,
    epoch: int,
    view: int,
    index: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    heights: npt.NDArray[np.int64],
) -> BatchPlan:
    """Draw crop, turn and flip for view `view` of each sample, by the view's pipeline; the rest as for plan_batch."""
    return plan_batch(pipelines[view], seed, epoch, index, widths, heights, view=view)


def choose_filters(
    pipelines: Sequence[ImagePipeline], seed: int, epoch: int, view: int, index: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Return the filter by which view `view` of each sample is resized, uint8 [batch]: numbers of INTERPOLATIONS."""
    number = _number_of(pipelines[view].interpolation)
    if number >= 0:
        return np.full(len(index), number, np.uint8)
    words = random_words(seed, epoch, index, view_stream(STREAM_CROP, view), _INTERPOLATION + 1)
    bilinear, bicubic = _number_of("bilinear"), _number_of("bicubic")
    return np.where(uniforms(words[:, _INTERPOLATION]) < 0.5, bilinear, bicubic).astype(np.uint8)


def native_crops(
    pipelines: Sequence[ImagePipeline], seed: int, epoch: int, offsets: Sequence[int] | None = None
) -> Crops | None:
    """Return the settings for the native library to draw the same as plan_views; None for crops that only Python draws.

    offsets: start of each view's images in the batch's memory, in bytes.
    """
    crops = np.zeros(len(pipelines), CROPS)
    for view, pipeline in enumerate(pipelines):
        kind = _NATIVE_KINDS.get(pipeline.crop)
        is_drawn = pipeline.shorter_side is None and not pipeline.keeps_scale and pipeline.size is not None
        is_drawn = is_drawn and not pipeline.resize_first
        if kind is None or not is_drawn:
            return None
        (low, high), (narrow, wide), (height, width) = pipeline.scale, pipeline.ratio, pipeline.output_size
        logs = math.log(narrow), math.log(wide)
        crops[view] = (
            *(seed, (low, high - low), (logs[0], logs[1] - logs[0]), (narrow, wide)),
            *(width / height, pipeline.center_fraction or 1),
            *(pipeline.flip, pipeline.vertical_flip, pipeline.rotate90),
            *(
                offsets[view] if offsets else 0,
                height * width * pipeline.channels,
                epoch,
                view_stream(STREAM_CROP, view),
            ),
            *(kind, pipeline.random, width, height, _number_of(pipeline.interpolation)),
        )
    return Crops(crops)


def _number_of(interpolation: str) -> int:
    """Return the number of an interpolation for the native library; -1 to draw it."""
    return -1 if interpolation == "random" else INTERPOLATIONS.index(cast(Interpolation, interpolation))


def _draw_windows(
    pipeline: ImagePipeline,
    draws: npt.NDArray[np.float64],
    widths: npt.NDArray[np.int64],
    heights: npt.NDArray[np.int64],
    *,
    keeps_aspect: bool,
) -> npt.NDArray[np.int64]:
    """Draw windows as torchvision does: the first of ten tries that fits, else the largest allowed centred window."""
    own = widths / heights if keeps_aspect else np.ones(len(widths))
    areas = (widths * heights)[:, None]
    tried_w, tried_h = draw_sides(draws[:, _FIRST_TRY:_ROTATION], areas, pipeline.scale, pipeline.ratio, own[:, None])
    fits = (tried_w > 0) & (tried_w <= widths[:, None]) & (tried_h > 0) & (tried_h <= heights[:, None])
    rows, first = np.arange(len(widths)), np.argmax(fits, axis=1)
    w, h = tried_w[rows, first].astype(np.int64), tried_h[rows, first].astype(np.int64)
    x = np.floor(draws[:, _X] * (widths - w + 1)).astype(np.int64)
    y = np.floor(draws[:, _Y] * (heights - h + 1)).astype(np.int64)
    missed = ~fits[rows, first]
    if missed.any():
        fallback_w = np.minimum(widths, np.rint(heights * (pipeline.ratio[1] * own)).astype(np.int64)).clip(1)
        fallback_h = np.minimum(heights, np.rint(widths / (pipeline.ratio[0] * own)).astype(np.int64)).clip(1)
        w, h = np.where(missed, fallback_w, w), np.where(missed, fallback_h, h)
        x, y = np.where(missed, (widths - w) // 2, x), np.where(missed, (heights - h) // 2, y)
    return np.stack((x, y, w, h), 1)


def draw_sides(
    draws: npt.NDArray[np.float64],
    full_area: npt.NDArray[np.int64] | int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    own: npt.NDArray[np.float64] | float = 1.0,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Turn pairs of draws into the sides of boxes: area uniform in `scale`, aspect log-uniform in `ratio`.

    draws: float64 [batch, 2 * tries] in [0, 1), alternating for area and aspect; full_area: area in pixels of which
    `scale` is a share; own: factors for the aspects. Returns the first and the second sides, float64 [batch, tries] of
    whole pixels; the aspect is first / second.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    area = full_area * (scale[0] + (scale[1] - scale[0]) * draws[:, ::2])
    aspect = np.exp(low + (high - low) * draws[:, 1::2]) * own
    return np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))


def _centred_windows(pipeline: ImagePipeline, widths: Ints, heights: Ints, view: int, *, keeps_aspect: bool) -> Ints:
    """Return windows with the aspect of `size`, `center_fraction` of the largest that fits, centred or in a corner."""
    aspect = widths / heights if keeps_aspect else pipeline.output_size[1] / pipeline.output_size[0]
    full_w, full_h = np.minimum(widths, heights * aspect), np.minimum(heights, widths / aspect)
    fraction = pipeline.center_fraction or 1.0
    w = np.rint(full_w * fraction).astype(np.int64).clip(1)
    h = np.rint(full_h * fraction).astype(np.int64).clip(1)
    room = np.stack((widths - w, heights - h), 1)
    return np.concatenate((choose_corner(pipeline, room, room // 2, view), np.stack((w, h), 1)), 1)


def _draw_turns(
    pipeline: ImagePipeline, draws: npt.NDArray[np.float64], view: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint8]]:
    """Return flips and turns: a rotation first, then the vertical flip, then the horizontal one."""
    flips, turns = draws[:, _FLIP] < pipeline.flip, np.zeros(len(draws), np.uint8)
    if pipeline.rotate90 > 0:
        share = draws[:, _ROTATION] / pipeline.rotate90  # below 1 for images that are turned by one of the three angles
        quarters = np.where(share < 1, 1 + np.floor(share * 3), 0).astype(np.intp)
        turns, mirrored = _QUARTERS[quarters].T
        flips = flips ^ (mirrored > 0)
    turns = turns ^ np.where(draws[:, _VERTICAL] < pipeline.vertical_flip, UPSIDE_DOWN, 0).astype(np.uint8)
    return flips ^ is_mirrored_view(pipeline, view), turns
