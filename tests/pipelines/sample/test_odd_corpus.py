"""The corpus of unusual images has every error code, and its tolerances separate right pixels from wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
from odd_images import ANY, OddImage, corpus

ACCEPTED = [odd for odd in corpus() if odd.code is None]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b).mean())


def test_size_names_and_codes() -> None:
    refusals = ("E-EMPTY", "E-FORMAT", "E-TRUNC", "E-EOI", "E-CORRUPT", "E-BOMB", "E-UNSUPPORTED")
    assert {odd.code for odd in corpus()} - {None, ANY} == set(refusals)
    assert len(ACCEPTED) >= 40
    assert len({odd.name for odd in corpus()}) == len(corpus())
    turned = [odd for odd in corpus() if odd.oriented_reference is not None]
    assert [odd.name for odd in turned] == [f"jpeg_orientation_{value}" for value in range(1, 9)]


@pytest.mark.parametrize("odd", ACCEPTED, ids=lambda odd: odd.name)
def test_tolerances_separate_right_from_wrong(odd: OddImage) -> None:
    right = odd.reference
    assert right is not None
    wrong = {"negative": 255 - right, "black": np.zeros_like(right), "white": np.full_like(right, 255)}
    height, width = right.shape[:2]
    if height > 17 and width > 17:
        wrong |= {"mirrored": right[:, ::-1], "upside down": right[::-1], "shifted": np.roll(right, 4, axis=1)}
        wrong["last rows missing"] = np.where(np.arange(height)[:, None, None] < 0.9 * height, right, 128)
    if np.ptp(right, axis=2).max() > 0:
        wrong |= {"BGR": right[..., ::-1], "grey": np.repeat(right.mean(2, keepdims=True), 3, axis=2)}
    assert {name for name, pixels in wrong.items() if distance(pixels, right) <= odd.tolerance} == set()
