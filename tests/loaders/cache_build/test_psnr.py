"""PSNR between a source and its lossy cache, measured on evaluation crops and not on whole images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import simplejpeg
from odd_images import textured

from penstock.loaders.cache_build.psnr import MAX_PSNR_DB, psnr_db, sample_psnr


class Images:
    """A source with only the method that is used."""

    def __init__(self, images: Sequence[bytes | np.ndarray]) -> None:
        self.images, self.asked = images, []

    def read(self, index: int) -> bytes | np.ndarray:
        self.asked.append(index)
        return self.images[index]


def test_psnr_follows_the_formula() -> None:
    a = np.zeros((4, 5, 3), np.uint8)
    b = a.copy()
    assert psnr_db(a, b) == MAX_PSNR_DB
    b[...] = 255
    assert psnr_db(a, b) == 0
    b[...] = 0
    b[0, 0] = 10, 0, 0
    assert psnr_db(a, b) == pytest.approx(10 * math.log10(255**2 / (100 / 60)))
    assert psnr_db(b, a) == psnr_db(a, b)


def test_psnr_is_the_mean_over_the_requested_images() -> None:
    pixels = [textured(60, 90), np.roll(textured(60, 90), 7, axis=1)]
    coded = [simplejpeg.encode_jpeg(image, quality) for image, quality in zip(pixels, (95, 20), strict=True)]
    source, cache = Images(pixels), Images(coded)
    each = [sample_psnr(source, cache, [index]) for index in (0, 1)]
    assert None not in each
    assert 60 > each[0] > each[1] + 3 > 20
    assert sample_psnr(source, cache, [0, 1]) == pytest.approx(sum(each) / 2)


def test_a_shard_may_begin_in_the_middle() -> None:
    pixels = [textured(60, 90), 255 - textured(60, 90)]
    source, cache = Images(pixels), Images(pixels[1:])
    assert sample_psnr(source, cache, [1], first=1) == MAX_PSNR_DB
    assert (source.asked, cache.asked) == ([1], [0])


def test_bad_images_are_left_out() -> None:
    pixels = textured(60, 90)
    source, cache = Images([pixels, b"nothing"]), Images([255 - pixels, b"nothing"])
    assert sample_psnr(source, cache, [0, 1]) == sample_psnr(source, cache, [0])
    assert sample_psnr(source, cache, [1]) is None
