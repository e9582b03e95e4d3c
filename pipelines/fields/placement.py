"""Moves the boxes and keypoints of a batch as its plans move the pixels.

Coordinates are distances from the left and upper edges of the upright image: the first pixel extends from 0 to 1,
its centre is at 0.5. All computations are in float64.
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
Size = tuple[int, int] | None  # (height, width) of all outputs; None if each output is as large as its place
STILL: Floats = np.empty((0, 1, 2, 3))  # matrices for a plan without operations
_CORNERS = np.array(((0, 1), (2, 1), (2, 3), (0, 3)))  # positions in a box of its corners' coordinates
_SLACK = 1.0  # pixels by which annotations may exceed the image: tools round, and some count pixels from 1


def move_points(points: Floats, rows: npt.NDArray[np.intp], plan: BatchPlan, size: Size) -> Floats:
    """Return points (x, y), float64 [n, 2], of the images in `rows`, int [n], in output pixels."""
    window, place = plan.windows[rows].astype(np.float64), plan.places[rows].astype(np.float64)
    moved = place[:, :2] + (points - window[:, :2]) * place[:, 2:] / window[:, 2:]
    turns, flips = plan.turns[rows], plan.flips[rows]
    transposed, upside_down = (turns & TRANSPOSED) != 0, (turns & UPSIDE_DOWN) != 0
    moved[transposed] = moved[transposed, ::-1]
    sides = place[:, 2:] if size is None else np.broadcast_to(np.array(size[::-1], np.float64), moved.shape)
    moved[upside_down, 1] = sides[upside_down, 1] - moved[upside_down, 1]
    moved[flips, 0] = sides[flips, 0] - moved[flips, 0]
    return moved


def find_shown(rows: npt.NDArray[np.intp], plan: BatchPlan, size: Size) -> tuple[Floats, Floats]:
    """Return the part that is shown of the images in `rows`, int [n]: of a window, what its place has in the output.

    Returns the upper left and the lower right corners, float64 [n, 2], in pixels of the image.
    """
    window, place = plan.windows[rows].astype(np.float64), plan.places[rows].astype(np.float64)
    first, last = window[:, :2], window[:, :2] + window[:, 2:]
    if size is None:
        return first, last
    before, beyond = -place[:, :2], place[:, :2] + place[:, 2:] - size[::-1]
    scale = np.divide(window[:, 2:], place[:, 2:], out=np.zeros_like(first), where=place[:, 2:] > 0)
    return first + before.clip(0) * scale, last - beyond.clip(0) * scale


def find_matrices(plan: BatchPlan, size: Size, moves: Floats = STILL) -> Floats:
    """Return the matrix that moves points (x, y) of each image: x' = a x + b y + c and y' = d x + e y + f.

    Returns float64 [batch, 2, 3], zeros in rows without a sample. size, moves: as for place_boxes.
    """
    window, place = plan.windows.astype(np.float64), plan.places.astype(np.float64)
    scale = np.divide(place[:, 2:], window[:, 2:], out=np.zeros((len(window), 2)), where=window[:, 2:] > 0)
    found = np.zeros((len(window), 2, 3))
    found[:, (0, 1), (0, 1)], found[:, :, 2] = scale, place[:, :2] - window[:, :2] * scale
    transposed = (plan.turns & TRANSPOSED) != 0
    found[transposed] = found[transposed, ::-1]
    sides = place[:, 2:] if size is None else np.broadcast_to(np.array(size[::-1], np.float64), (len(window), 2))
    for axis, turned in ((1, (plan.turns & UPSIDE_DOWN) != 0), (0, plan.flips)):
        found[turned, axis] *= -1
        found[turned, axis, 2] += sides[turned, axis]
    for matrices in moves:
        shift = matrices[:, :, 2]
        found = matrices[:, :, :2] @ found
        found[:, :, 2] += shift
    found[window[:, 2] <= 0] = 0
    return found


def corners_of(boxes: Ragged, kind: FieldKind, sizes: npt.NDArray[np.int32]) -> Floats:
    """Return boxes as left, top, right, bottom in pixels, float64 [n, 4].

    boxes: with the parts xyxy [n, 4], or centre and sides as shares of the image's sides if `kind` is relative. sizes:
    widths and heights of the images, int32 [rows, 2].
    """
    given = boxes.parts[0].astype(np.float64)
    if not kind.relative:
        return given
    sides = sizes[boxes.rows].astype(np.float64)
    center, half = given[:, :2] * sides, given[:, 2:] * sides / 2
    return np.concatenate((center - half, center + half), 1)


def find_outside(corners: Floats, rows: npt.NDArray[np.intp], sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """Return the numbers of boxes outside their image. One pixel over the edge is accepted as rounding."""
    sides = sizes[rows]
    inside = (corners[:, :2] >= -_SLACK).all(1) & (corners[:, 2:] <= sides + _SLACK).all(1)
    return np.flatnonzero(~inside)


def find_other_sizes(boxes: Ragged, sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """Return the numbers of boxes that declare (in their optional third part) a size different from their image's."""
    if len(boxes.parts) < 3:
        return np.empty(0, np.intp)
    said, are = (np.ascontiguousarray(each, np.int32).view(np.int64)[:, 0] for each in (boxes.parts[2], sizes))
    return np.flatnonzero((said != np.repeat(are, boxes.lengths)) & (said != 0))


def place_boxes(
    boxes: Ragged, corners: Floats, kind: FieldKind, plan: BatchPlan, size: Size, moves: Floats = STILL
) -> tuple[Ragged, npt.NDArray[np.bool_]]:
    """Cut boxes to what is shown, drop boxes with too little area left, and move the others to output pixels.

    Returns the boxes kept, float32 [m, 4] (x1, y1, x2, y2), with their classes and other parts, and a mask of the boxes
    kept. A box without any area left is always dropped. moves: from forward_matrices, if all outputs have one size; a
    moved box is the smallest box around its four moved corners, cut to the image, and the area cut off there counts
    too.
    """
    windows, shown = plan.windows[boxes.rows].astype(np.float64), find_shown(boxes.rows, plan, size)
    cut = _cut(corners, windows[:, :2], windows[:, :2] + windows[:, 2:])
    area, left = _areas(corners), _areas(_cut(corners, *shown))
    first, second = (move_points(cut[:, at : at + 2], boxes.rows, plan, size) for at in (0, 2))
    moved = np.concatenate((np.minimum(first, second), np.maximum(first, second)), 1)
    moved = moved if size is None else moved.clip(0, size[::-1] * 2)
    for matrices in moves:
        assert size is not None
        at, matrix = _find_moved(matrices, boxes.rows)
        around = _surround(moved[at], matrix)
        moved[at], full = around.clip(0, size[::-1] * 2), _areas(around)
        left[at] *= np.divide(_areas(moved[at]), full, out=np.zeros(len(full)), where=full > 0)
    kept = (left > 0) & (left >= kind.min_area * area)
    left_over = boxes.keep(kept)
    return Ragged(left_over.lengths, (moved[kept].astype(np.float32), *left_over.parts[1:])), kept


def _cut(corners: Floats, low: Floats, high: Floats) -> Floats:
    return np.concatenate((corners[:, :2].clip(low, high), corners[:, 2:].clip(low, high)), 1)


def _find_moved(matrices: Floats, rows: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], Floats]:
    """Return the elements (of the images in `rows`) that an operation moves, and the matrix of each."""
    moved = (matrices != np.eye(2, 3)).any((1, 2))[rows]
    return np.flatnonzero(moved), matrices[rows[moved]]


def _surround(boxes: Floats, matrix: Floats) -> Floats:
    """Return the smallest boxes around the corners of boxes [n, 4] after moving each by its matrix [n, 2, 3]."""
    corners = boxes[:, _CORNERS] @ matrix[:, :, :2].transpose(0, 2, 1) + matrix[:, None, :, 2]
    return np.concatenate((corners.min(1), corners.max(1)), 1)


def place_keypoints(
    points: npt.NDArray[Any],
    rows: npt.NDArray[np.intp],
    kind: FieldKind,
    plan: BatchPlan,
    size: Size,
    moves: Floats = STILL,
) -> npt.NDArray[np.float32]:
    """Move sets of keypoints, [n, k, 3] of x, y and visibility, of the images in `rows`, int [n].

    Points that are not shown, points that a move takes out of the image, and points of visibility 0 become zeros. In
    mirrored images the pairs `kind.swaps` change places. moves: from forward_matrices, if all outputs have one size.
    """
    given = points.astype(np.float64)
    low, high = find_shown(rows, plan, size)
    inside = (given[..., :2] >= low[:, None]) & (given[..., :2] < high[:, None])
    seen = inside.all(-1) & (given[..., 2] > 0)
    of_each = np.broadcast_to(rows[:, None], seen.shape)[seen]
    moved, shown = move_points(given[seen, :2], of_each, plan, size), np.ones((len(of_each), 1), bool)
    for matrices in moves:
        assert size is not None
        at, matrix = _find_moved(matrices, of_each)
        moved[at] = (matrix[:, :, :2] @ moved[at, :, None])[..., 0] + matrix[:, :, 2]
        shown[at] &= ((moved[at] >= 0) & (moved[at] < size[::-1])).all(1, keepdims=True)
    placed = np.zeros(given.shape, np.float32)
    placed[seen] = np.where(shown, np.concatenate((moved, given[seen, 2:]), 1), 0)
    turns = plan.turns[rows]
    mirrored = np.flatnonzero(plan.flips[rows] ^ ((turns & TRANSPOSED) != 0) ^ ((turns & UPSIDE_DOWN) != 0))
    for left, right in kind.swaps:
        placed[mirrored, left], placed[mirrored, right] = placed[mirrored, right], placed[mirrored, left]
    return placed


def _areas(corners: Floats) -> Floats:
    sides = corners[:, 2:] - corners[:, :2]
    return sides[:, 0] * sides[:, 1]
