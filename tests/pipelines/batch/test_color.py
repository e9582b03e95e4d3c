"""Saturation, sharpness and hue: every colour against Pillow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from augment_images import by_pillow, share_off
from PIL import Image

from penstock.pipelines.batch.color import adjust_hue, make_grey, to_grey, to_planes
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


def test_grey_is_pillows_mode_l() -> None:
    images = every_colour(3)
    expected = np.asarray(Image.fromarray(images[0]).convert("L"))
    assert (to_grey(to_planes(torch.from_numpy(images)))[0].numpy() == expected).all()


def test_every_colour_of_16_million_is_made_grey_as_pillow_does() -> None:
    image = every_colour(1)[0]
    found = torch.from_numpy(image.copy())[None]
    make_grey(found, np.empty(0))
    expected = np.asarray(Image.fromarray(image).convert("L"))
    assert all(np.array_equal(found[0, ..., channel], expected) for channel in range(3))
