"""The size that a lossy cache stores, and the kernel that shrinks to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from odd_images import textured
from torch.nn import functional

from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache_encode.resize import shrunk, shrunk_size


@pytest.mark.parametrize(
    ("size", "settings", "expected"),
    [
        ((500, 375), {"resize": 256}, (341, 256)),
        ((375, 500), {"resize": 256}, (256, 341)),
        ((500, 375), {"resize": 400, "longer_side": True}, (400, 300)),
        ((500, 375), {"resize": 375}, (500, 375)),
        ((500, 375), {"resize": 376}, (500, 375)),
        ((500, 375), {"resize": 600, "longer_side": True}, (500, 375)),
        ((3000, 1), {"resize": 10, "longer_side": True}, (10, 1)),
        ((1, 3000), {"resize": 10}, (1, 3000)),
        ((500, 375), {"quality": 90}, (500, 375)),
    ],
)
def test_shrunk_size(size: tuple[int, int], settings: dict[str, int], expected: tuple[int, int]) -> None:
    assert shrunk_size(*size, Encoding(**settings)) == expected


@pytest.mark.parametrize("size", [(120, 200), (200, 120), (49, 3000)])
def test_pixels_are_those_of_the_antialiased_kernel(size: tuple[int, int]) -> None:
    pixels = textured(*size)
    pixels.flags.writeable = False
    small = shrunk(pixels, Encoding(resize=48))
    batch = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    expected = functional.interpolate(batch, small.shape[:2], mode="bilinear", antialias=True)
    assert (small == expected[0].permute(1, 2, 0).numpy()).all()
    assert small.flags.c_contiguous


def test_an_image_that_is_small_enough_is_itself() -> None:
    pixels = textured(60, 48)
    assert shrunk(pixels, Encoding(resize=48)) is pixels
    assert np.array_equal(shrunk(pixels[:, ::-1], Encoding(kind="raw")), pixels[:, ::-1])
