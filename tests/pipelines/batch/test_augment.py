"""Operations on uint8 batches: results equal Pillow's, samples have separate operations, nothing is read back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from augment_images import by_pillow, images_of, move_by_pillow, share_off, values_of
from PIL import Image

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch import augment as rounds
from penstock.pipelines.batch import geometry, interpolate, native_ops
from penstock.pipelines.batch.augment import augment
from penstock.pipelines.native.library import native_library
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, Op, plan_augmentations

COMMON = {"color_jitter": (0.4, 0.4, 0.4, 0.1), "blur": 0.5, "grayscale": 0.3, "solarize": 0.3}
EVERYTHING = Augmentations(auto_augment="rand", rand_ops=3, rand_magnitude=14, **COMMON)
TIMM = Augmentations(auto_augment="timm", rand_ops=4, rand_magnitude_std=0.5, three_augment=True)


def plan_of(ops: list[list[Op]], values: list[list[float]]) -> AugmentPlan:
    number = len(ops[0])
    return AugmentPlan(np.array(ops, np.int8), np.array(values), np.zeros((number, 4), np.int32), None)


# Blends are computed in float32: one level of difference is allowed in one value per thousand, for processors that fuse
# a product and a sum. All else is integers or Python's float64, and exact: shears and turns pick Pillow's pixels.
# Interpolation uses float32, Pillow float64: one level is allowed in two values per thousand.
BLENDS = (Op.BRIGHTNESS, Op.CONTRAST, Op.COLOR, Op.SHARPNESS, Op.HUE)
SMOOTH = tuple(op for op in Op if op >= Op.SHEAR_X_BILINEAR)
INEXACT = (*BLENDS, *SMOOTH)
MOVES = (*geometry.OPS, *SMOOTH)


@pytest.mark.parametrize("size", [(41, 56), (3, 3), (2, 5), (5, 2), (1, 1), (17, 300)], ids=str)
@pytest.mark.parametrize("op", list(Op)[1:], ids=lambda op: op.name)
def test_each_operation_is_pillows(op: Op, size: tuple[int, int]) -> None:
    number = 60 if size == (41, 56) else 15
    images, values = images_of(number, size), values_of(op, number)
    if size == (1, 1):  # a single pixel: its planes would share its memory
        images, values = images[1:2], values[5:6]
    found = augment(torch.from_numpy(images), plan_of([[op] * len(images)], [values.tolist()]))
    expected = by_pillow(op, images, values)
    assert share_off(found, expected, levels=int(op in INEXACT)) == 0
    few = 0.001 if op in BLENDS else 0.002 if size[0] * size[1] > 1000 else 0.01
    assert share_off(found, expected) <= few * (op in INEXACT)
    if size == (41, 56):  # the operation has an effect
        assert share_off(found, images) > 0.2


@pytest.mark.parametrize("op", list(Op)[1:], ids=lambda op: op.name)
def test_the_native_library_equals_torch(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_library() is not None
    images, values = images_of(), values_of(op)
    images[0] = 255 * np.indices(images[0].shape).sum(0) % 256
    found = augment(torch.from_numpy(images), plan_of([[op] * 100], [values.tolist()]))
    monkeypatch.setattr(native_ops, "native_library", lambda: None)
    assert torch.equal(found, augment(torch.from_numpy(images), plan_of([[op] * 100], [values.tolist()])))


def every_colour(step: int) -> np.ndarray:
    """Return one image of all colours with channels that are multiples of `step`, or 255."""
    levels = np.append(np.arange(0, 255, step), 255).astype(np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1)
    return colours.reshape(1, len(levels), -1, 3)


@pytest.mark.parametrize("turn", [0.0, 0.013, -0.25, 0.5])
def test_the_hue_of_all_colours_equals_pillows(turn: float) -> None:
    images, values = every_colour(5), np.array([turn])
    found, expected = (
        augment(torch.from_numpy(images), plan_of([[Op.HUE]], [[turn]])),
        by_pillow(Op.HUE, images, values),
    )
    assert share_off(found, expected, levels=1) == 0
    assert share_off(found, expected) <= 0.001


def test_the_grey_of_all_16_million_colours_equals_pillows() -> None:
    images = every_colour(1)
    found = augment(torch.from_numpy(images), plan_of([[Op.GRAYSCALE]], [[0.0]]))
    assert np.array_equal(found.numpy(), by_pillow(Op.GRAYSCALE, images, np.zeros(1)))


def test_every_pair_of_operations_equals_pillows() -> None:
    """All pairs of operations, one after another, in one batch that shuffles them."""
    pairs = [(one, two) for one in Op for two in Op]
    order = np.random.default_rng(0).permutation(len(pairs))
    ops = np.array(pairs, np.int8)[order].T
    images = images_of(len(pairs), (33, 40))
    values = np.stack([[values_of(Op(op), 100)[n % 100] for n, op in enumerate(row)] for row in ops])
    found = augment(torch.from_numpy(images), AugmentPlan(ops, values, np.zeros((len(pairs), 4), np.int32), None))
    for n in range(len(pairs)):
        expected = images[n : n + 1]
        for op, value in zip(ops[:, n], values[:, n], strict=True):
            expected = by_pillow(Op(op), expected, np.array([value]))
        # exact except for values that are rounded differently; the second operation may amplify a difference
        few = 0.05 if ops[0, n] in SMOOTH else 0.01
        assert share_off(found[n : n + 1], expected) <= few, (Op(ops[0, n]), Op(ops[1, n]))


@pytest.mark.parametrize("op", SMOOTH, ids=lambda op: op.name)
def test_pixels_from_outside_have_the_fill_colour(op: Op) -> None:
    images, values, fill = images_of(20, (33, 40)), values_of(op, 20), (124, 116, 104)
    found = augment(torch.from_numpy(images), plan_of([[op] * 20], [values.tolist()]), fill)
    by_hand = (move_by_pillow(op, Image.fromarray(a), float(v), fill) for a, v in zip(images, values, strict=True))
    expected = np.stack([np.asarray(image) for image in by_hand])
    assert share_off(found, expected, levels=1) == 0
    assert (expected == fill).all(-1).mean() > 0.05


def test_the_input_is_unchanged_and_identity_is_a_copy() -> None:
    images = torch.from_numpy(images_of(5, (6, 7)))
    before = images.clone()
    found = augment(images, plan_of([[Op.IDENTITY] * 5], [[0.0] * 5]))
    assert torch.equal(found, before)
    assert found.data_ptr() != images.data_ptr()
    augment(images, plan_of([[Op.EQUALIZE] * 5], [[0.0] * 5]))
    assert torch.equal(images, before)


@pytest.mark.parametrize("augmentations", [EVERYTHING, TIMM], ids=["everything", "timm"])
@pytest.mark.parametrize("pixels", [1, 200, 10**9])
def test_the_size_of_pieces_does_not_affect_results(
    pixels: int, augmentations: Augmentations, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.from_numpy(images_of(40, (19, 23)))
    plan = plan_augmentations(augmentations, (19, 23), BatchKey(3, 1, np.arange(40)))
    expected = augment(images, plan)
    for module in (rounds, interpolate):
        monkeypatch.setattr(module, "_CPU_PIXELS", pixels)
    assert torch.equal(augment(images, plan), expected)


def test_a_batch_with_gaps_and_an_empty_one() -> None:
    images = torch.from_numpy(images_of(10, (9, 8)))
    plan = plan_augmentations(EVERYTHING, (9, 8), BatchKey(0, 0, np.arange(5)))
    assert torch.equal(augment(images[::2], plan), augment(images[::2].contiguous(), plan))
    nothing = plan_augmentations(EVERYTHING, (9, 8), BatchKey(0, 0, np.arange(0)))
    assert augment(images[:0], nothing).shape == (0, 9, 8, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("augmentations", [EVERYTHING, TIMM], ids=["everything", "timm"])
def test_a_device_equals_the_cpu(augmentations: Augmentations) -> None:
    images = torch.from_numpy(images_of(200, (61, 70)))
    plan = plan_augmentations(augmentations, (61, 70), BatchKey(3, 1, np.arange(200)))
    assert torch.equal(augment(images.cuda(), plan).cpu(), augment(images, plan))


@pytest.mark.gpu
def test_the_host_does_not_wait_for_a_device() -> None:
    images = torch.from_numpy(images_of(200, (61, 70))).cuda()
    plan = plan_augmentations(EVERYTHING, (61, 70), BatchKey(3, 1, np.arange(200)))
    expected = augment(images, plan)  # copies the tables of hues once
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = augment(images, plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, expected)
