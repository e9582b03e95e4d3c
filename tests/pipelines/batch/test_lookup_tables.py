"""Operations by tables: Pillow's results, each in a batch of its own and side by side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from augment_images import by_pillow, images_of, share_off, values_of

from penstock.pipelines.batch import lookup_tables as augment_tables
from penstock.pipelines.batch.lookup_tables import look_up, map_values
from penstock.pipelines.plan.augmentations import Op

SIZES = [(41, 56), (3, 3), (2, 5), (1, 1), (17, 300)]
# Brightness and contrast are blends in float32: one level is allowed, in one value of a thousand, for processors that
# round a product and a sum at once. The others are integers, or Python's float64, and exact.
LEVELS = {Op.BRIGHTNESS: 1, Op.CONTRAST: 1}


def mapped(op: Op, images: np.ndarray, values: np.ndarray) -> torch.Tensor:
    found = torch.from_numpy(images.copy())
    map_values(found, np.full(len(images), op, np.int8), values)
    return found


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("op", augment_tables.OPS)
def test_values_are_pillows(op: Op, size: tuple[int, int]) -> None:
    number = 100 if size == SIZES[0] else 30
    images, values = images_of(number, size), values_of(op, number)
    expected, found = by_pillow(op, images, values), mapped(op, images, values)
    assert share_off(found, expected, levels=LEVELS.get(op, 0)) == 0
    assert share_off(found, expected) <= (0.001 if op in LEVELS else 0)
    if size == SIZES[0]:  # and the operation does something
        assert share_off(found, images) > 0.2


def test_equalize_spreads_beyond_the_last_level_as_pillow_cuts_it() -> None:
    """So few pixels that a step of the histogram is rounded down to one, and the spread runs past 255."""
    values = np.repeat(np.arange(0, 250, 2), 4).astype(np.uint8)
    images = np.stack([values, values[::-1], values // 2], -1)[None, None]
    assert share_off(mapped(Op.EQUALIZE, images, np.zeros(1)), by_pillow(Op.EQUALIZE, images, np.zeros(1))) == 0


def test_operations_side_by_side_do_not_mix() -> None:
    images = images_of(60, seed=3)
    ops = np.repeat(np.array(augment_tables.OPS, np.int8), 10)
    values = np.concatenate([values_of(op, 10) for op in augment_tables.OPS])
    found = torch.from_numpy(images.copy())
    map_values(found, ops, values)
    for number, op in enumerate(augment_tables.OPS):
        rows = slice(10 * number, 10 * number + 10)
        assert torch.equal(found[rows], mapped(op, images[rows], values[rows])), op


def test_a_table_is_looked_up_by_sample_channel_and_value() -> None:
    images = images_of(7, (5, 9))
    tables = np.random.default_rng(0).integers(0, 256, (7, 3, 256), np.uint8)
    found = torch.from_numpy(images.copy())
    look_up(found, torch.from_numpy(tables))
    sample, channel = np.arange(7)[:, None, None, None], np.arange(3)
    assert (found.numpy() == tables[sample, channel, images]).all()
