"""Masks, boxes and keypoints compared with independent references, on random windows, places, turns and flips."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from augment_images import values_of
from odd_images import encoded
from PIL import Image
from placed_fields import (
    apply,
    matrix,
    move_box,
    move_mask_by_pillow,
    move_point,
    moves_of,
    nearest,
    reference_mask,
    shown_box,
)

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.masks import decode_mask
from penstock.pipelines.fields.pictures import crop_array, place_window
from penstock.pipelines.fields.placement import corners_of, find_matrices, find_outside, place_boxes, place_keypoints
from penstock.pipelines.fields.ragged import Ragged, join_rows, take_rows
from penstock.pipelines.image_types import TRANSPOSED, UPSIDE_DOWN
from penstock.pipelines.plan.augmentations import AugmentPlan, Op
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.plan.moves import forward_matrices, move_picture

TRIALS = 1000


def random_plans(rng: np.random.Generator, count: int) -> tuple[list[tuple[int, int]], tuple[int, int], BatchPlan]:
    """Return sizes (width, height) of images, the size (height, width) of all outputs, and a plan of `count` rows."""
    square = bool(rng.integers(2))
    height, width = (int(side) for side in rng.integers(3, 60, 2))
    out = (height, height if square else width)
    sizes = [(int(w), int(h)) for w, h in rng.integers(2, 90, (count, 2))]
    windows, places = [], []
    for image in sizes:
        boxes = []
        for sides in (image, (out[1], out[0])):
            length = [int(rng.integers(1, side + 1)) for side in sides]
            boxes.append(
                [int(rng.integers(0, side - part + 1)) for side, part in zip(sides, length, strict=True)] + length
            )
        windows.append(boxes[0])
        places.append((boxes[1], [0, 0, out[1], out[0]], random_around(rng, out))[rng.integers(3)])
    turns = rng.integers(0, 4 if square else 2, count).astype(np.uint8)
    assert (TRANSPOSED, UPSIDE_DOWN) == (2, 1)
    flips = rng.integers(0, 2, count).astype(bool)
    return sizes, out, BatchPlan(np.array(windows, np.int32), flips, np.array(places, np.int32), turns)


def random_around(rng: np.random.Generator, out: tuple[int, int]) -> list[int]:
    """Return a place of which some part lies in the output, and others may lie beyond it."""
    width, height = (int(side) for side in rng.integers(1, 150, 2))
    return [int(rng.integers(1 - width, out[1])), int(rng.integers(1 - height, out[0])), width, height]


def test_boxes_are_those_of_exact_arithmetic() -> None:
    rng = np.random.default_rng(1)
    for trial in range(TRIALS // 5):
        sizes, out, plan = random_plans(rng, 5)
        kind = FieldKind(kind="boxes", min_area=(0.0, 0.1, 0.5)[trial % 3])
        lengths = rng.integers(0, 6, 5)
        corners, wanted = [], []
        for row, (width, height) in enumerate(sizes):
            for _ in range(lengths[row]):
                xs, ys = (
                    np.sort(rng.uniform(0, width, 2).astype(np.float32)),
                    np.sort(rng.uniform(0, height, 2).astype(np.float32)),
                )
                box = [float(xs[0]), float(ys[0]), float(xs[1]), float(ys[1])]
                corners.append(box)
                shown = shown_box(plan, row, out)
                cut = [*map(max, box[:2], shown[:2]), *map(min, box[2:], shown[2:])]
                left = Fraction(max(0, cut[2] - cut[0])) * Fraction(max(0, cut[3] - cut[1]))
                area = Fraction(box[2] - box[0]) * Fraction(box[3] - box[1])
                if left <= 0 or left < Fraction(kind.min_area) * area:
                    continue
                first, second = (apply(matrix(plan, row, out), *cut[at : at + 2]) for at in (0, 2))
                ends = [*map(min, first, second), *map(max, first, second)]
                wanted.append((row, len(corners) - 1, [nearest(value) for value in ends]))
        boxes = Ragged(lengths, (np.array(corners, np.float32).reshape(-1, 4), np.arange(len(corners))))
        placed, kept = place_boxes(boxes, corners_of(boxes, kind, np.array(sizes, np.int32)), kind, plan, out)
        assert placed.parts[0].dtype == np.float32
        assert placed.rows.tolist() == [row for row, _, _ in wanted]
        assert placed.parts[1].tolist() == np.flatnonzero(kept).tolist() == [number for _, number, _ in wanted]
        assert placed.parts[0].tolist() == [[float(value) for value in box] for _, _, box in wanted]


def test_the_matrix_of_a_row_without_a_sample_is_zero() -> None:
    _, out, plan = random_plans(np.random.default_rng(7), 5)
    plan.windows[2], plan.places[2], plan.flips[2] = 0, 0, True
    found = find_matrices(plan, out, np.ones((1, 5, 2, 3)))
    assert found.any((1, 2)).tolist() == [True, True, False, True, True]


def test_keypoints_are_those_of_exact_arithmetic() -> None:
    rng = np.random.default_rng(2)
    kind = FieldKind(kind="keypoints", swaps=((0, 1), (2, 4)))
    for _ in range(TRIALS // 5):
        sizes, out, plan = random_plans(rng, 5)
        points = rng.uniform(-3, 93, (5, 5, 3)).astype(np.float32)
        points[..., 2] = rng.integers(0, 3, (5, 5))
        placed = place_keypoints(points, np.arange(5), kind, plan, out)
        for row in range(5):
            map_ = matrix(plan, row, out)
            order = list(range(5))
            if map_[0][0] * map_[1][1] - map_[0][1] * map_[1][0] < 0:  # a mirror image
                order = [1, 0, 4, 3, 2]
            left, top, right, bottom = shown_box(plan, row, out)
            for at, point in zip(order, points[row].tolist(), strict=True):
                seen = left <= point[0] < right and top <= point[1] < bottom and point[2] > 0
                wanted = [*map(nearest, apply(map_, *point[:2])), point[2]] if seen else [0, 0, 0]
                assert placed[row, at].tolist() == [float(value) for value in wanted]
        assert len(sizes) == 5


def test_masks_are_those_of_pillow() -> None:
    rng = np.random.default_rng(3)
    for trial in range(TRIALS // 5):
        sizes, out, plan = random_plans(rng, 5)
        for row, (width, height) in enumerate(sizes):
            mask = rng.integers(0, 255, (height, width)).astype(np.uint8 if trial % 2 else np.int32)
            window, place = (tuple(part[row].tolist()) for part in (plan.windows, plan.places))
            made = np.empty(out, mask.dtype)
            place_window(crop_array(mask, window), place, made, int(plan.turns[row]), bool(plan.flips[row]), 255)
            assert np.array_equal(made, reference_mask(mask, plan, row, out, 255))


def random_moves(rng: np.random.Generator, count: int) -> AugmentPlan:
    """Return a plan with one to three operations per image; most of them move pixels."""
    known = np.array([*Op][: Op.BRIGHTNESS] + [*Op][Op.SHEAR_X_BILINEAR :], np.int8)
    ops = rng.choice(known, (rng.integers(1, 4), count))
    values = [[0.3 * values_of(Op(op), 20)[rng.integers(20)] for op in each] for each in ops.tolist()]
    return AugmentPlan(ops, np.array(values), np.zeros((count, 4), np.int32), None)


def test_fields_move_with_the_operations_of_the_batch_stage() -> None:
    """Boxes surround their moved corners, are cut after each move and dropped by area; points are kept while inside."""
    rng = np.random.default_rng(4)
    whole, kind, points_kind = (FieldKind(kind="boxes", min_area=share) for share in (0, 0.2, 0))
    left_out = [0, 0]
    for _ in range(TRIALS // 5):
        _, out, plan = random_plans(rng, 5)
        moves = random_moves(rng, 5)
        matrices, rows = forward_matrices(moves, out), np.repeat(np.arange(5), 3)
        seen = np.array([shown_box(plan, row, out) for row in range(5)], float).reshape(5, 2, 2)[rows]
        shares = np.sort(rng.uniform(-0.3, 1.3, (15, 2, 2)), 1)
        corners = (seen[:, :1] + shares * np.diff(seen, axis=1)).reshape(15, 4)
        boxes = Ragged(np.full(5, 3), (corners.astype(np.float32), np.arange(15)))
        still, _ = place_boxes(boxes, corners, whole, plan, out)
        placed, _ = place_boxes(boxes, corners, kind, plan, out, matrices)
        wanted: list[tuple[int, list[float]]] = []
        for number, box in zip(still.parts[1].tolist(), still.parts[0].astype(float).tolist(), strict=True):
            shown = np.diff(shares[number].clip(0, 1), axis=0).prod() / np.diff(shares[number], axis=0).prod()
            box, left = move_box(moves_of(moves, int(rows[number])), box, shown, out)
            if left > 0 and left >= 0.2:
                wanted.append((number, box))
        assert placed.parts[1].tolist() == [number for number, _ in wanted]
        assert np.allclose(placed.parts[0], np.reshape([box for _, box in wanted], (-1, 4)), rtol=0, atol=1e-4)
        points = np.concatenate((corners.reshape(5, 6, 2), np.ones((5, 6, 1))), 2)
        before = place_keypoints(points, np.arange(5), points_kind, plan, out)
        after = place_keypoints(points, np.arange(5), points_kind, plan, out, matrices)
        for row, number in np.argwhere(before[..., 2] > 0).tolist():
            at, inside = before[row, number, :2].tolist(), True
            for move in moves_of(moves, row):
                at = list(move_point(move, *at, out))
                inside = inside and 0 <= at[0] < out[1] and 0 <= at[1] < out[0]
            assert np.allclose(after[row, number], [*at, 1] if inside else 0, rtol=0, atol=1e-4)
            left_out[0] += not inside
        assert not after[before[..., 2] == 0].any()
        left_out[1] += len(still.parts[1]) - len(wanted)
        for row in range(5):
            mask = rng.integers(0, 255, out).astype(np.uint8)
            assert np.array_equal(
                move_picture(mask, moves, row, 255), move_mask_by_pillow(mask, moves_of(moves, row), 255)
            )
    assert min(left_out) > TRIALS / 10


@pytest.mark.parametrize(
    ("mode", "kind", "high"),
    [("P", np.uint8, 256), ("L", np.uint8, 256), ("1", np.uint8, 2), ("I;16", np.uint16, 65536)],
)
def test_pngs_keep_their_values(mode: str, kind: Any, high: int) -> None:
    values = np.random.default_rng(5).integers(0, high, (37, 53)).astype(kind)
    image = Image.fromarray(values * np.uint8(255)).convert("1") if mode == "1" else Image.fromarray(values)
    if mode == "P":
        image = Image.frombytes("P", image.size, values.tobytes())
        image.putpalette(list(range(255, -1, -1)) * 3)
    assert (decode_mask(encoded(image, "PNG")) == values).all()


def test_other_masks_are_refused() -> None:
    for image, form, code in (
        (Image.new("RGB", (4, 4)), "PNG", "E-UNSUPPORTED"),
        (Image.new("L", (4, 4)), "JPEG", "E-UNSUPPORTED"),
    ):
        with pytest.raises(LoaderError, match=code):
            decode_mask(encoded(image, form))
    with pytest.raises(LoaderError, match="E-CORRUPT"):
        decode_mask(b"\x89PNG\r\n\x1a\n0000")


def test_boxes_over_the_edge() -> None:
    sizes = np.array([[10, 20]], np.int32)
    boxes = np.array([[0, 0, 10, 20], [-1, -1, 11, 21], [-1.5, 0, 5, 5], [0, 0, 5, 21.5]])
    assert find_outside(boxes, np.zeros(4, np.intp), sizes).tolist() == [2, 3]


def test_relative_boxes_become_corners() -> None:
    boxes = Ragged(np.array([1, 1]), (np.array([[0.5, 0.5, 1, 1], [0.25, 0.75, 0.5, 0.5]], np.float32), np.zeros(2)))
    kind = FieldKind(kind="boxes", relative=True)
    assert corners_of(boxes, kind, np.array([[8, 4], [16, 8]])).tolist() == [[0, 0, 8, 4], [0, 4, 8, 8]]


def test_ragged_rows() -> None:
    ragged = Ragged(np.array([2, 0, 1]), (np.arange(3), np.arange(6).reshape(3, 2)))
    again = take_rows(join_rows([ragged, ragged]), np.array([5, 4, 0]))
    assert again.lengths.tolist() == [1, 0, 2]
    assert again.parts[0].tolist() == [2, 0, 1]
    padded = ragged.pad([-1, 9])
    assert padded[0].tolist() == [[0, 1], [-1, -1], [2, -1]]
    assert padded[1].tolist() == [[[0, 1], [2, 3]], [[9, 9], [9, 9]], [[4, 5], [9, 9]]]
