"""Moves boxes and keypoints of a batch to where its plan puts their pixels.

Coordinates are distances from the left and the upper edge of the upright image: the first pixel reaches from 0 to 1,
its centre is 0.5. All is computed in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import Ragged
from penstock.pipelines.image_types import TRANSPOSED, UPSIDE_DOWN
from penstock.pipelines.plan.crops import BatchPlan

Floats = npt.NDArray[np.float64]
_SLACK = 1.0  # pixels that annotations may reach over the image's edge: tools round, and some count pixels from 1


def move_points(points: Floats, rows: npt.NDArray[np.intp], plan: BatchPlan, size: tuple[int, int]) -> Floats:
    """Return points (x, y), float64 [n, 2], of the images in `rows`, int [n], in output pixels.

    size: (height, width) of the output.
    """
    window, place = plan.windows[rows].astype(np.float64), plan.places[rows].astype(np.float64)
    moved = place[:, :2] + (points - window[:, :2]) * place[:, 2:] / window[:, 2:]
    turns, flips = plan.turns[rows], plan.flips[rows]
    transposed, upside_down = (turns & TRANSPOSED) != 0, (turns & UPSIDE_DOWN) != 0
    moved[transposed] = moved[transposed, ::-1]
    moved[upside_down, 1] = size[0] - moved[upside_down, 1]
    moved[flips, 0] = size[1] - moved[flips, 0]
    return moved


def corners_of(boxes: Ragged, kind: FieldKind, sizes: npt.NDArray[np.int32]) -> Floats:
    """Return boxes as left, top, right, bottom in pixels, float64 [n, 4].

    boxes: with the parts xyxy [n, 4], or center and sides as shares of the image's where `kind` is relative. sizes:
    widths and heights of the images, int32 [rows, 2].
    """
    given = boxes.parts[0].astype(np.float64)
    if not kind.relative:
        return given
    sides = sizes[boxes.rows].astype(np.float64)
    center, half = given[:, :2] * sides, given[:, 2:] * sides / 2
    return np.concatenate((center - half, center + half), 1)


def find_outside(corners: Floats, rows: npt.NDArray[np.intp], sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """Return the numbers of boxes that are not in their image. One pixel over the edge is rounding."""
    sides = sizes[rows]
    inside = (corners[:, :2] >= -_SLACK).all(1) & (corners[:, 2:] <= sides + _SLACK).all(1)
    return np.flatnonzero(~inside)


def place_boxes(
    boxes: Ragged, corners: Floats, kind: FieldKind, plan: BatchPlan, size: tuple[int, int]
) -> tuple[Ragged, npt.NDArray[np.bool_]]:
    """Cut boxes to the windows, drop those of which too little is left, and move the others to output pixels.

    Returns boxes, float32 [m, 4] (x1, y1, x2, y2) and their classes, and which of the boxes these are. A box of which
    nothing is left is always dropped. size: (height, width) of the output.
    """
    windows = plan.windows[boxes.rows].astype(np.float64)
    low, high = windows[:, :2], windows[:, :2] + windows[:, 2:]
    cut = np.concatenate((corners[:, :2].clip(low, high), corners[:, 2:].clip(low, high)), 1)
    area, left = _areas(corners), _areas(cut)
    kept = (left > 0) & (left >= kind.min_area * area)
    shown, cut = boxes.keep(kept), cut[kept]
    first, second = (move_points(cut[:, at : at + 2], shown.rows, plan, size) for at in (0, 2))
    moved = np.concatenate((np.minimum(first, second), np.maximum(first, second)), 1)
    return Ragged(shown.lengths, (moved.astype(np.float32), *shown.parts[1:])), kept


def place_keypoints(
    points: npt.NDArray[Any], rows: npt.NDArray[np.intp], kind: FieldKind, plan: BatchPlan, size: tuple[int, int]
) -> npt.NDArray[np.float32]:
    """Move sets of keypoints, [n, k, 3] of x, y and visibility, of the images in `rows`, int [n].

    Those outside the window, and those of visibility 0, become zeros. Where the result is a mirror image, the pairs
    `kind.swaps` change places. size: (height, width) of the output.
    """
    given = points.astype(np.float64)
    window = plan.windows[rows].astype(np.float64)[:, None]
    inside = (given[..., :2] >= window[..., :2]) & (given[..., :2] < window[..., :2] + window[..., 2:])
    seen = inside.all(-1) & (given[..., 2] > 0)
    placed = np.zeros(given.shape, np.float32)
    of_each = np.broadcast_to(rows[:, None], seen.shape)[seen]
    placed[seen, :2] = move_points(given[seen, :2], of_each, plan, size)
    placed[seen, 2] = given[seen, 2]
    turns = plan.turns[rows]
    mirrored = np.flatnonzero(plan.flips[rows] ^ ((turns & TRANSPOSED) != 0) ^ ((turns & UPSIDE_DOWN) != 0))
    for left, right in kind.swaps:
        placed[mirrored, left], placed[mirrored, right] = placed[mirrored, right], placed[mirrored, left]
    return placed


def _areas(corners: Floats) -> Floats:
    sides = corners[:, 2:] - corners[:, :2]
    return sides[:, 0] * sides[:, 1]
