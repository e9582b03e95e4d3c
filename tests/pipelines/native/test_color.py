"""Colours, tables of levels, sharpness and blur in C: bit-exact with torch, for images of any size."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import native_tests
import numpy as np
import pytest
import torch
from augment_images import images_of, values_of
from native_windows import variant

from penstock.pipelines.batch import blur, color, lookup_tables, native_ops
from penstock.pipelines.plan.augmentations import Floats, Op

Adjust = Callable[[torch.Tensor, Floats], None]
PAIRS: dict[Op, tuple[Callable[[ctypes.CDLL, torch.Tensor, Floats], None], Adjust]] = {
    Op.GRAYSCALE: (native_ops.make_grey, color.make_grey),
    Op.COLOR: (native_ops.adjust_color, color.adjust_color),
    Op.SHARPNESS: (native_ops.adjust_sharpness, color.adjust_sharpness),
    Op.HUE: (native_ops.adjust_hue, color.adjust_hue),
    Op.BLUR: (native_ops.blur, blur.blur_each),
}
SIZES = [(41, 57), (1, 1), (1, 259), (300, 1), (2, 2), (3, 4), (16, 16)]


def in_guarded_memory(images: np.ndarray) -> torch.Tensor:
    """Return a copy that is followed by inaccessible memory."""
    return torch.from_numpy(native_tests.at_the_end_of_memory(images.tobytes()).reshape(images.shape))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("op", PAIRS, ids=lambda op: op.name)
def test_an_operation_equals_torchs(library: ctypes.CDLL, op: Op, size: tuple[int, int]) -> None:
    for number, seed in ((0, 0), (1, 1), (30, 2)):
        images, values = images_of(30, size, seed)[:number], values_of(op, 30, seed + 1)[:number]
        found = in_guarded_memory(images) if number else torch.from_numpy(images)
        expected = torch.from_numpy(images.copy())
        PAIRS[op][0](library, found, values)
        if number:
            PAIRS[op][1](expected, values)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("op", lookup_tables.OPS, ids=lambda op: op.name)
def test_a_table_of_levels_equals_torchs(
    library: ctypes.CDLL, op: Op, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, values, results = images_of(30, size), values_of(op, 30), []
    for chosen in (library, None):
        monkeypatch.setattr(native_ops, "native_library", lambda chosen=chosen: chosen)
        results.append(in_guarded_memory(images))
        lookup_tables.map_values(results[-1], np.full(30, op, np.int8), values)
    assert torch.equal(*results)


@pytest.mark.parametrize("turn", [0.0, -0.31, 0.5])
def test_the_hue_and_saturation_of_all_16_million_colours_equal_torchs(native: ctypes.CDLL, turn: float) -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    for reds in levels.split(16):
        colours = torch.cartesian_prod(reds, levels, levels).view(1, len(reds), -1, 3)
        for op, value in ((Op.HUE, turn), (Op.COLOR, 1 + 3 * turn)):
            expected, values = colours.clone(), np.array([value])
            PAIRS[op][1](expected, values)
            for avx2 in (True, False):
                found = colours.clone()
                with variant(native, avx2):
                    PAIRS[op][0](native, found, values)
                assert torch.equal(found, expected)
