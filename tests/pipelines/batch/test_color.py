"""Saturation, sharpness and hue: Pillow's results."""

from __future__ import annotations

import colorsys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from augment_images import by_pillow, images_of, share_off, values_of
from PIL import Image

from penstock.pipelines.batch.color import adjust_color, adjust_hue, adjust_sharpness, grey, planes
from penstock.pipelines.plan.augmentations import Floats, Op

SIZES = [(41, 56), (3, 3), (2, 5), (5, 2), (1, 1), (17, 300)]
APPLY: dict[Op, Callable[[torch.Tensor, Floats], None]] = {
    Op.COLOR: adjust_color,
    Op.SHARPNESS: adjust_sharpness,
    Op.HUE: adjust_hue,
}


def every_colour(step: int) -> np.ndarray:
    """One image of all colours whose channels are multiples of `step`, and of 255."""
    levels = np.append(np.arange(0, 255, step), 255).astype(np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1)
    return colours.reshape(1, len(levels), -1, 3)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("op", APPLY)
def test_values_are_pillows(op: Op, size: tuple[int, int]) -> None:
    """Within one level, and one value of a thousand: Pillow's C rounds floats where its compiler likes."""
    number = 100 if size == SIZES[0] else 30
    images, values = images_of(number, size), values_of(op, number)
    expected, found = by_pillow(op, images, values), torch.from_numpy(images.copy())
    APPLY[op](found, values)
    assert share_off(found, expected, levels=1) == 0
    assert share_off(found, expected) <= 0.001
    if size == SIZES[0]:
        assert share_off(found, images) > 0.2


@pytest.mark.parametrize("turn", [0.0, 0.013, -0.25, 0.5])
def test_hue_of_all_colours_is_pillows(turn: float) -> None:
    images = every_colour(5)
    found = torch.from_numpy(images.copy())
    adjust_hue(found, np.array([turn]))
    expected = by_pillow(Op.HUE, images, np.array([turn]))
    assert share_off(found, expected, levels=1) == 0
    assert share_off(found, expected) <= 0.001


def test_hue_is_a_turn_of_the_circle_within_what_8_bits_of_hsv_lose() -> None:
    images, turn = every_colour(51), 0.2
    found = torch.from_numpy(images.copy())
    adjust_hue(found, np.array([turn]))
    for colour, turned in zip(images.reshape(-1, 3), found.view(-1, 3).tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(colour / 255))
        expected = 255 * np.array(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
        assert np.abs(expected - turned).max() <= 14  # two steps of hue are 6 / 255 each, one of saturation


def test_grey_is_pillows_mode_l() -> None:
    images = every_colour(3)
    expected = np.asarray(Image.fromarray(images[0]).convert("L"))
    assert (grey(planes(torch.from_numpy(images)))[0].numpy() == expected).all()


@pytest.mark.parametrize("op", APPLY)
def test_samples_keep_their_own_parameter(op: Op) -> None:
    images, values = images_of(20, (8, 10)), values_of(op, 20)
    together = torch.from_numpy(images.copy())
    APPLY[op](together, values)
    for n in range(20):
        alone = torch.from_numpy(images[n : n + 1].copy())
        APPLY[op](alone, values[n : n + 1])
        assert torch.equal(alone[0], together[n])
