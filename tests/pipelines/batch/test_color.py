"""Saturation, sharpness and hue: every colour against Pillow."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from augment_images import by_pillow, share_off
from PIL import Image

from penstock.pipelines.batch.color import adjust_hue, to_grey, to_planes
from penstock.pipelines.plan.augmentations import Op


def every_colour(step: int) -> np.ndarray:
    """One image of all colours whose channels are multiples of `step`, and of 255."""
    levels = np.append(np.arange(0, 255, step), 255).astype(np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1)
    return colours.reshape(1, len(levels), -1, 3)


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
    assert (to_grey(to_planes(torch.from_numpy(images)))[0].numpy() == expected).all()
