"""Antialiased resize into a batch slot: torch's kernel, Pillow's, and the memory around the slot."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from odd_images import scene, textured
from PIL import Image

from penstock.pipelines import resampling
from penstock.pipelines.image_types import TRANSPOSED, UPSIDE_DOWN
from penstock.pipelines.resampling import as_nchw, resize_into
from penstock.pipelines.sample.resize import RESIZERS, Resize, resize_pillow, write_sample

SHAPES = [  # (height, width) of the pixels, then of the slot
    ((375, 500), (224, 224)),
    ((500, 333), (224, 224)),
    ((97, 61), (224, 224)),
    ((224, 224), (96, 160)),
    ((301, 299), (33, 47)),
    ((64, 64), (64, 32)),
    ((1, 1), (16, 24)),
    ((1, 900), (24, 16)),
    ((900, 1), (24, 16)),
    ((2, 3), (3, 2)),
    ((40, 40), (1, 1)),
    ((225, 223), (224, 224)),
]
POISON = 0xA5


def slots(height: int, width: int, number: int = 3) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A poisoned uint8 batch [number, height, width, 3] and its slots, each [1, 3, height, width]."""
    batch = torch.full((number, height, width, 3), POISON, dtype=torch.uint8)
    return batch, [batch[i : i + 1].permute(0, 3, 1, 2) for i in range(number)]


def resized(pixels: np.ndarray, size: tuple[int, int], resize: Resize) -> np.ndarray:
    batch, (_, slot, _) = slots(*size)
    resize(pixels, slot)
    assert (batch[0] == POISON).all()
    assert (batch[2] == POISON).all()
    return batch[1].numpy()


def torchvision_definition(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The result of torchvision's RandomResizedCrop: PIL.Image.resize with BILINEAR, which antialiases."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b).mean())


def test_this_torch_has_the_kernel_that_writes_into_a_slot() -> None:
    assert resampling.torch_kernel("bilinear") is not None
    assert resampling.torch_kernel("bicubic") is not None


@pytest.mark.parametrize("in_torch", [True, False], ids=["functional.interpolate", "numpy"])
@pytest.mark.parametrize(("source", "target"), SHAPES)
def test_the_private_kernel_is_equal_to_its_replacements(
    source: tuple[int, int], target: tuple[int, int], in_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(image(*source), name) for image in (textured, scene) for name in ("bilinear", "bicubic", "lanczos")]
    expected = [resized(pixels, target, partial(resize_into, interpolation=name)) for pixels, name in cases]
    monkeypatch.setattr(resampling, "torch_kernel", lambda name: None)
    monkeypatch.setattr(resampling, "_IN_TORCH", ("bilinear", "bicubic") if in_torch else ())
    for (pixels, name), wanted in zip(cases, expected, strict=True):
        assert np.array_equal(resized(pixels, target, partial(resize_into, interpolation=name)), wanted), name


@pytest.mark.parametrize("resize", RESIZERS.values(), ids=RESIZERS)
def test_crops_that_are_views_give_the_same_as_copies(resize: Resize) -> None:
    whole = textured(240, 320)
    views = [
        whole[17:201, 33:290],
        whole[:, ::-1][3:99, 5:77],
        whole[::-1][3:99, 5:77],
        whole.transpose(1, 0, 2)[10:150, 20:90],
        whole[::2, ::3],
    ]
    for view in views:
        assert not view.flags.c_contiguous
        assert np.array_equal(resized(view, (64, 80), resize), resized(view.copy(), (64, 80), resize))


@pytest.mark.parametrize("resize", RESIZERS.values(), ids=RESIZERS)
@pytest.mark.parametrize(("source", "target"), SHAPES)
def test_the_result_equals_torchvisions(source: tuple[int, int], target: tuple[int, int], resize: Resize) -> None:
    pixels = textured(*source)
    expected = torchvision_definition(pixels, target)
    found = resized(pixels, target, resize)
    assert distance(found, expected) < 1
    assert np.abs(found.astype(int) - expected).max() <= 3
    if resize is resize_pillow:
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("shape", [(1, 5, 3), (5, 1, 3)])
def test_a_mirrored_row_of_pixels(shape: tuple[int, ...]) -> None:
    """numpy calls it contiguous for any stride of an axis of one pixel, but torch rejects a negative stride."""
    pixels = np.flip(np.arange(15, dtype=np.uint8).reshape(shape), shape.index(1))
    assert np.array_equal(as_nchw(pixels)[0].permute(1, 2, 0).numpy(), pixels)


def grey_of(rgb: np.ndarray) -> np.ndarray:
    """Pillow's conversion to mode L, for levels of 8 or 16 bits: [h, w, 1]."""
    weighted = rgb.astype(np.int64) @ np.array((19595, 38470, 7471))
    return ((weighted + 0x8000) >> 16).astype(rgb.dtype)[..., None]


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_random_places_turns_fills_and_flips_equal_numpys(dtype: type, channels: int) -> None:
    rng = np.random.default_rng(channels)
    for number in range(250):
        side = int(rng.integers(1, 60))
        height, width = (side, side) if number % 2 else rng.integers(1, 60, 2).tolist()
        turn, flip = int(rng.integers(0, 4 if height == width else 2)), bool(rng.integers(2))
        w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
        if number % 5 == 0:
            w, h = width, height
        x, y = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
        fill = tuple(rng.integers(0, 256, 3).tolist())
        source = (h, w) if number % 3 == 0 else tuple(rng.integers(1, 90, 2).tolist())
        pixels = rng.integers(0, 256, (*source, 3), np.uint8)
        drawn = pixels if source == (h, w) else resized(pixels, (h, w), resize_into)
        if dtype == np.uint16:
            pixels = rng.integers(0, 65536, (*source, 3), np.uint16) if number % 4 else pixels
            deep = pixels if pixels.dtype == np.uint16 else pixels.astype(np.uint16) * 257
            drawn = deep if source == (h, w) else resize_exactly(deep, (h, w))
        expected = np.empty((height, width, 3), dtype)
        expected[...] = np.array(fill, dtype) * (257 if dtype == np.uint16 else 1)
        expected[y : y + h, x : x + w] = drawn
        expected = grey_of(expected) if channels == 1 else expected
        expected = expected.transpose(1, 0, 2) if turn & TRANSPOSED else expected
        expected = expected[::-1] if turn & UPSIDE_DOWN else expected
        expected = expected[:, ::-1] if flip else expected
        memory = np.full((3, height, width, channels), POISON, dtype)
        slot = torch.from_numpy(memory[1:2]).permute(0, 3, 1, 2)
        write_sample(pixels, slot, flip, resize_into, (x, y, w, h), turn, fill)
        # with 16 bits, one level, because float32 and float64 round differently
        assert np.abs(memory[1].astype(int) - expected).max() <= (dtype == np.uint16), (number, turn, flip)
        assert (memory[[0, 2]] == POISON).all()


def resize_exactly(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """An antialiased bilinear resize of uint16 in float64, rounded half to even: Pillow's triangles, as matrices."""
    result = pixels.astype(np.float64)
    for axis in (0, 1):
        length, wanted = result.shape[axis], size[axis]
        scale = length / wanted
        support = max(scale, 1.0)
        centres = (np.arange(wanted) + 0.5) * scale
        weights = np.maximum(0, 1 - np.abs(np.arange(length) + 0.5 - centres[:, None]) / support)
        weights /= weights.sum(1, keepdims=True)
        result = np.moveaxis(np.tensordot(weights, result, (1, axis)), 0, axis)
    return np.rint(result).astype(np.uint16)


def test_images_of_another_depth_are_scaled() -> None:
    levels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    deep, shallow = np.zeros((1, 16, 16, 3), np.uint16), np.zeros((1, 16, 16, 3), np.uint8)
    write_sample(levels, torch.from_numpy(deep).permute(0, 3, 1, 2), False, resize_into)
    assert np.array_equal(deep[0], levels.astype(np.uint16) * 257)
    write_sample(deep[0], torch.from_numpy(shallow).permute(0, 3, 1, 2), False, resize_into)
    assert np.array_equal(shallow[0], levels)


def test_grey_pixels_keep_their_levels_in_one_channel() -> None:
    for dtype, most in ((np.uint8, 256), (np.uint16, 65536)):
        grey = np.arange(most).astype(dtype).reshape(-1, 64)
        slot = np.zeros((1, *grey.shape, 1), dtype)
        pixels = np.broadcast_to(grey[:, :, None], (*grey.shape, 3))
        write_sample(pixels, torch.from_numpy(slot).permute(0, 3, 1, 2), False, resize_into)
        assert np.array_equal(slot[0, :, :, 0], grey)
