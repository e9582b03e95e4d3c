"""Assignment of each image to the bucket with the nearest aspect ratio."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source
from penstock.loaders.make.sizes.read_sizes import image_sizes, refuse_unread
from penstock.loaders.order.bucket_order import Bucketed, make_bucketed
from penstock.loaders.order.epoch_steps import Size
from penstock.pipelines.messages.checked import checked_int, checked_tuple, shown
from penstock.pipelines.spec import ImagePipeline

_MAX_BUCKETS = 256
_MAX_SIDE = 1 << 16  # larger sides are halved, because their products must fit 64 bits
_AT_ONCE = 1 << 16


def checked_size(name: str, size: object) -> Size:
    """Return (height, width) of a side or a pair. Raises ValueError."""
    check = partial(checked_int, low=1, high=16384)
    if isinstance(size, (tuple, list, np.ndarray)):
        height, width = checked_tuple(name, size, ("height", "width"), check)
        return height, width
    side = check(name, size)
    return side, side


def checked_buckets(buckets: object) -> tuple[Size, ...]:
    """Return the sizes of buckets. Raises ValueError for an empty list, and for two of the same aspect ratio."""
    if not isinstance(buckets, (tuple, list)) or not 1 <= len(buckets) <= _MAX_BUCKETS:
        raise ValueError(f"buckets must be a list of 1 to {_MAX_BUCKETS} sizes (height, width), got {shown(buckets)}")
    sizes = tuple(checked_size("buckets", size) for size in buckets)
    by_aspect: dict[Fraction, Size] = {}
    for size in sizes:
        other = by_aspect.setdefault(Fraction(*size), size)
        if other is not size:
            raise ValueError(f"buckets must have different aspect ratios, got {other} and {size}: remove one of them")
    return sizes


def assign_buckets(
    widths: npt.NDArray[np.integer[Any]], heights: npt.NDArray[np.integer[Any]], sizes: Sequence[Size]
) -> npt.NDArray[np.uint8]:
    """Return the bucket of each image, uint8 [n]: the one with the nearest aspect ratio on a logarithmic scale.

    If two buckets are equally near, the first one is used. Integers are compared, so that the result is the same on
    every machine. An image without a size counts as square.
    """
    order = sorted(range(len(sizes)), key=lambda number: Fraction(sizes[number][1], sizes[number][0]))
    found = np.empty(len(widths), np.uint8)
    for first in range(0, len(widths), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        w, h = (np.maximum(side[some].astype(np.int64), 1) for side in (widths, heights))
        while (large := np.maximum(w, h) >= _MAX_SIDE).any():
            w[large], h[large] = (w[large] + 1) // 2, (h[large] + 1) // 2
        above = np.zeros(len(w), np.int64)  # number of borders between neighbouring aspect ratios below the image
        for lower, upper in pairwise(order):
            # The border is the geometric mean: (w / h)^2 = (width / height of one bucket) * (same for the other).
            border = Fraction(sizes[lower][1] * sizes[upper][1], sizes[lower][0] * sizes[upper][0])
            ours, theirs = w * w * border.denominator, h * h * border.numerator
            above += (ours > theirs) | ((ours == theirs) & (upper < lower))
        found[some] = np.array(order, np.uint8)[above]
    return found


def order_by_buckets(
    source: Source, pipeline: ImagePipeline, sizes: tuple[Size, ...], seed: int, *, shuffled: bool, refuses: bool
) -> Bucketed:
    """Return the order that serves the images of `source` in buckets of `sizes`.

    refuses: raise the LoaderError of the first image with an unreadable size. Otherwise such an image is served as a
    bad sample, in the bucket nearest to a square.
    """
    known = image_sizes(source, pipeline)
    unread = np.flatnonzero(known.widths == 0)
    if refuses and len(unread):
        refuse_unread(source, pipeline, int(unread[0]))
    return make_bucketed(assign_buckets(known.widths, known.heights, sizes), sizes, seed, shuffled=shuffled)
