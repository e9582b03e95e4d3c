"""PSNR between a source and its lossy cache: of the crops that evaluation sees, not of the whole images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import simplejpeg
from odd_images import encoded, textured

from penstock.loaders.cache_encode.psnr import MAX_PSNR_DB, psnr_db, sample_indices, sample_psnr
from penstock.pipelines import imagenet_eval

SMALL = imagenet_eval(32, center_fraction=1.0)


class Images:
    """Just what is read, by number."""

    def __init__(self, images: Sequence[bytes | np.ndarray]) -> None:
        self.images, self.asked = images, []

    def read(self, index: int) -> bytes | np.ndarray:
        self.asked.append(index)
        return self.images[index]


def test_psnr_is_that_of_the_formula() -> None:
    a = np.zeros((4, 5, 3), np.uint8)
    b = a.copy()
    assert psnr_db(a, b) == MAX_PSNR_DB
    b[...] = 255
    assert psnr_db(a, b) == 0
    b[...] = 0
    b[0, 0] = 10, 0, 0
    assert psnr_db(a, b) == pytest.approx(10 * math.log10(255**2 / (100 / 60)))
    assert psnr_db(b, a) == psnr_db(a, b)


def test_indices_are_spread_over_all() -> None:
    assert sample_indices(3) == [0, 1, 2]
    assert sample_indices(0) == []
    chosen = sample_indices(1_000_000)
    assert len(set(chosen)) == 64
    assert (min(chosen), max(chosen)) == (0, 984_375)


def test_the_same_images_are_equal_whatever_their_format() -> None:
    pixels = textured(60, 90)
    assert sample_psnr(Images([pixels]), Images([encoded(pixels, "PNG")]), [0], pipeline=SMALL) == MAX_PSNR_DB


def test_the_mean_over_the_images_asked_for() -> None:
    pixels = [textured(60, 90), np.roll(textured(60, 90), 7, axis=1)]
    coded = [simplejpeg.encode_jpeg(image, quality) for image, quality in zip(pixels, (95, 20), strict=True)]
    source, cache = Images(pixels), Images(coded)
    each = [sample_psnr(source, cache, [index], pipeline=SMALL) for index in (0, 1)]
    assert None not in each
    assert 60 > each[0] > each[1] + 3 > 20
    assert sample_psnr(source, cache, [0, 1], pipeline=SMALL) == pytest.approx(sum(each) / 2)


def test_a_shard_begins_in_the_middle() -> None:
    pixels = [textured(60, 90), 255 - textured(60, 90)]
    source, cache = Images(pixels), Images(pixels[1:])
    assert sample_psnr(source, cache, [1], first=1, pipeline=SMALL) == MAX_PSNR_DB
    assert (source.asked, cache.asked) == ([1], [0])


def test_only_the_crop_counts() -> None:
    """A centre crop of half the side sees nothing of a changed edge."""
    pixels = textured(100, 100)
    changed = pixels.copy()
    changed[:10] = 0
    seen = [imagenet_eval(32, center_fraction=fraction) for fraction in (0.5, 1.0)]
    found = [sample_psnr(Images([pixels]), Images([changed]), [0], pipeline=pipeline) for pipeline in seen]
    assert found[0] == MAX_PSNR_DB
    assert found[1] < 30


def test_bad_images_are_left_out() -> None:
    pixels = textured(60, 90)
    source, cache = Images([pixels, b"nothing"]), Images([255 - pixels, b"nothing"])
    assert sample_psnr(source, cache, [0, 1], pipeline=SMALL) == sample_psnr(source, cache, [0], pipeline=SMALL)
    assert sample_psnr(source, cache, [1], pipeline=SMALL) is None
