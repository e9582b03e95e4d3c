"""Erased boxes, mixed pairs, soft targets: compared with loops over samples in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.pipelines.batch import erase_and_mix as augment_boxes
from penstock.pipelines.batch.erase_and_mix import erase, make_soft_targets, mix
from penstock.pipelines.plan.augmentations import Mixing

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
HEIGHT, WIDTH = 11, 14


def batch_of(number: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(number, HEIGHT, WIDTH, 3, generator=generator) * 2
    return images.mul(40).abs().to(dtype) if dtype == torch.uint8 else images.to(dtype)


def boxes_of(number: int, seed: int = 0) -> np.ndarray:
    """Return boxes of every kind: inside, at the edges, the whole image, empty."""
    draw = np.random.default_rng(seed)
    x, y = np.sort(draw.integers(0, WIDTH + 1, (number, 2))), np.sort(draw.integers(0, HEIGHT + 1, (number, 2)))
    boxes = np.stack((x[:, 0], y[:, 0], x[:, 1], y[:, 1]), 1).astype(np.int32)
    boxes[:4] = [(0, 0, WIDTH, HEIGHT), (0, 0, 0, 0), (3, 4, 3, 9), (WIDTH - 1, HEIGHT - 1, WIDTH, HEIGHT)][:number]
    return boxes


def mixing_of(pairs: int, seed: int = 0) -> Mixing:
    """Return a plan in which half of the pairs exchange boxes, and some pairs of either kind are not mixed."""
    draw = np.random.default_rng(seed)
    cut = np.arange(pairs) % 2 == 0
    boxes = np.where(cut[:, None], boxes_of(pairs, seed), 0).astype(np.int32)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    share = np.where(cut, 1 - area / (HEIGHT * WIDTH), draw.random(pairs))
    share[[1, 7]] = 1.0
    return Mixing(share, cut, boxes)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8], ids=str)
def test_boxes_are_erased_and_nothing_else(dtype: torch.dtype) -> None:
    images, boxes = batch_of(30, dtype), boxes_of(30)
    boxes[-1] = (3, HEIGHT, 3, HEIGHT)  # an empty box, below the last row
    colour = torch.tensor([7, 0, 200]).to(dtype)
    expected = images.clone()
    for n, (left, top, right, bottom) in enumerate(boxes.tolist()):
        expected[n, top:bottom, left:right] = colour
    erase(images, boxes, colour)
    assert torch.equal(images, expected)


@pytest.mark.parametrize("values", [1, 1000, 1 << 18])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pairs_are_mixed(dtype: torch.dtype, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment_boxes, "_CPU_VALUES", values)
    images, mixing = batch_of(40, dtype), mixing_of(20)
    before, expected = images.clone(), images.double()
    for k in range(20):
        even, odd = before[2 * k].double(), before[2 * k + 1].double()
        if mixing.cut[k]:
            left, top, right, bottom = mixing.boxes[k].tolist()
            expected[2 * k, top:bottom, left:right] = odd[top:bottom, left:right]
            expected[2 * k + 1, top:bottom, left:right] = even[top:bottom, left:right]
        else:
            share = mixing.share[k]
            expected[2 * k], expected[2 * k + 1] = share * even + (1 - share) * odd, share * odd + (1 - share) * even
    mix(images, mixing)
    # for the short floats the sum is rounded once
    unit = {torch.float32: 2.0**-22, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    assert ((images.double() - expected).abs() <= unit * expected.abs() + 4e-6).all()
    exact = np.repeat(mixing.cut | (mixing.share == 1), 2)
    assert torch.equal(images[exact].double(), expected[exact])  # exchanged or not mixed: bit-exact
    assert not torch.equal(images[~exact], before[~exact])


def test_a_box_without_area_exchanges_nothing() -> None:
    """As drawn by cutmix for a share near 1: somewhere in the image, alone in its batch."""
    images = batch_of(2)
    before = images.clone()
    mix(images, Mixing(np.ones(1), np.ones(1, np.bool_), np.array([[3, 4, 3, 6]], np.int32)))
    assert torch.equal(images, before)


def test_soft_targets_are_the_shares_of_the_labels() -> None:
    draw, mixing = np.random.default_rng(5), mixing_of(20)
    labels = draw.integers(0, 6, 40)
    labels[[2, 14, 15]] = -1  # pairs 1 and 7, which are not mixed
    labels[20:22] = 3  # a pair of one class
    expected = np.zeros((40, 6))
    for n, label in enumerate(labels.tolist()):
        share, partner = mixing.share[n // 2], labels[n ^ 1]
        if label >= 0:
            expected[n, label] += share
        if share < 1:
            expected[n, partner] += 1 - share
    found = make_soft_targets(torch.from_numpy(labels), mixing, 6)
    assert found.dtype == torch.float32
    assert found.numpy() == pytest.approx(expected, abs=1e-6)
    assert found.sum(1).numpy() == pytest.approx((labels >= 0).astype(float), abs=1e-6)
    assert not found[[2, 14, 15]].any()
    assert found[3].max() == 1  # next to padding
    assert (labels[[2, 14, 15]] == -1).all()  # the labels themselves are unchanged


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_device_equals_the_cpu(dtype: torch.dtype) -> None:
    here, there = batch_of(40, dtype), batch_of(40, dtype).cuda()
    for images in (here, there):
        erase(images, boxes_of(40), torch.ones(3, dtype=dtype, device=images.device))
        mix(images, mixing_of(20))
    assert torch.allclose(here, there.cpu(), atol=1e-6, rtol=1e-6)
    labels = torch.arange(40) % 5
    assert torch.equal(
        make_soft_targets(labels.cuda(), mixing_of(20), 5).cpu(), make_soft_targets(labels, mixing_of(20), 5)
    )
