"""The bucket of an image: the nearest aspect, equal on all machines."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.loaders.make.sizes import aspect_buckets
from penstock.loaders.make.sizes.aspect_buckets import assign_buckets, checked_buckets
from penstock.loaders.make.sizes.size_schedule import make_phases
from penstock.loaders.order.schedule import Phase

BUCKETS = ((224, 224), (192, 256), (256, 192), (128, 384), (320, 160))


def nearest(width: int, height: int) -> list[int]:
    """Return the buckets nearest to an image by logarithms: several if these cannot tell."""
    far = [abs(math.log(width / height) - math.log(w / h)) for h, w in BUCKETS]
    return [number for number, distance in enumerate(far) if distance < min(far) + 1e-12]


def test_an_image_gets_the_bucket_of_the_nearest_aspect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aspect_buckets, "_AT_ONCE", 700)
    draw = np.random.default_rng(0)
    widths, heights = draw.integers(1, 65_536, (2, 3000))
    widths[:1000], heights[:1000] = draw.integers(1, 500, (2, 1000))
    found = assign_buckets(widths.astype(np.uint16), heights.astype(np.int32), BUCKETS)
    assert len(set(found.tolist())) == len(BUCKETS)
    for width, height, bucket in zip(widths.tolist(), heights.tolist(), found.tolist(), strict=True):
        assert bucket == nearest(width, height)[0]


@pytest.mark.parametrize("sizes", [((256, 192), (192, 256)), ((192, 256), (256, 192))], ids=str)
def test_the_first_of_two_equally_near_buckets_is_used(sizes: tuple[tuple[int, int], ...]) -> None:
    assert assign_buckets(np.array([100, 7]), np.array([100, 7]), sizes).tolist() == [0, 0]
    tall, wide = sizes.index((256, 192)), sizes.index((192, 256))
    assert assign_buckets(np.array([999, 1000]), np.array([1000, 999]), sizes).tolist() == [tall, wide]


def test_sides_beyond_16_bits_and_images_without_a_size_get_a_bucket() -> None:
    widths, heights = np.array([90_000_000, 1, 70_000, 0]), np.array([1, 90_000_000, 70_001, 0])
    assert assign_buckets(widths, heights, BUCKETS).tolist() == [3, 4, 0, 0]
    prime = ((16381, 16369), (16369, 16381), (127, 16381))  # the borders between these are not ratios of small numbers
    assert assign_buckets(widths, heights, prime).tolist() == [2, 0, 0, 0]


def test_batch_and_image_sizes_of_each_epoch_are_joined() -> None:
    assert checked_buckets([224, (192, 256)]) == ((224, 224), (192, 256))
    assert make_phases(16, None, (224, 224)) == (16, ())
    sizes = {10: 224, 0: 128, 6: (160, 192)}
    joined = (Phase(0, 64, (128, 128)), Phase(6, 64, (160, 192)), Phase(8, 32, (160, 192)), Phase(10, 32, (224, 224)))
    assert make_phases({0: 64, 8: 32}, sizes, (99, 99)) == (64, joined)
    assert make_phases({0: 4, 1: 8}, None, (99, 9)) == (8, (Phase(0, 4, (99, 9)), Phase(1, 8, (99, 9))))
