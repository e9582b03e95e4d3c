"""Shears, translations and rotations: Pillow's pixels, exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from augment_images import by_pillow, images_of, share_off, values_of

from penstock.pipelines.batch import geometry as augment_geometry
from penstock.pipelines.batch.geometry import inverse_matrices, warp
from penstock.pipelines.plan.augmentations import Op

SIZES = [(41, 56), (64, 64), (3, 3), (2, 5), (1, 1), (17, 300)]


def warped(ops: np.ndarray, images: np.ndarray, values: np.ndarray) -> torch.Tensor:
    found = torch.from_numpy(images.copy())
    warp(found, inverse_matrices(ops, values, images.shape[1:3]))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("op", augment_geometry.OPS)
def test_pixels_are_pillows(op: Op, size: tuple[int, int]) -> None:
    """No pixel differs, not even where two are equally near: coordinates are Pillow's fixed-point ones."""
    number = 100 if size == SIZES[0] else 30
    images, values = images_of(number, size), values_of(op, number)
    found = warped(np.full(number, op, np.int8), images, values)
    assert share_off(found, by_pillow(op, images, values)) == 0
    if size == SIZES[0]:
        assert share_off(found, images) > 0.2


def test_operations_in_one_batch_do_not_mix() -> None:
    images = images_of(50, seed=2)
    ops = np.tile(np.array(augment_geometry.OPS, np.int8), 10)
    values = np.stack([values_of(op, 50) for op in augment_geometry.OPS])[np.arange(50) % 5, np.arange(50)]
    found = warped(ops, images, values)
    for n in range(50):
        expected = by_pillow(Op(ops[n]), images[n : n + 1], values[n : n + 1])
        assert share_off(found[n : n + 1], expected) == 0


def test_what_comes_from_outside_is_black_and_nothing_else_is() -> None:
    images = np.full((3, 20, 30, 3), 255, np.uint8)
    found = warped(np.array([Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.TRANSLATE_X], np.int8), images, np.array([7.0, -4, 30]))
    assert not found[0, :, :7].any()
    assert (found[0, :, 7:] == 255).all()
    assert not found[1, -4:].any()
    assert (found[1, :-4] == 255).all()
    assert not found[2].any()


def test_rotation_is_counter_clockwise() -> None:
    image = images_of(1, (9, 9))
    found = warped(np.array([Op.ROTATE], np.int8), image, np.array([90.0]))
    assert (found[0].numpy() == np.rot90(image[0])).all()
