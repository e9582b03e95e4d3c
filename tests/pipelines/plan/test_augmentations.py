"""Draws of the augmentations: torchvision's rules, a pure function of (seed, epoch, sample index)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, Op, plan_augmentations, symmetric_beta
from penstock.pipelines.plan.philox import STREAM_BATCH, random_words, uniforms

SIZE = (48, 80)
ALL = Augmentations(
    auto_augment="rand", color_jitter=(0.4, 0.3, 0.2, 0.1), erasing=0.4, mixup=0.3, cutmix=1.0, rand_ops=3
)
PARTS = {
    "rand": Augmentations(auto_augment="rand"),
    "trivial": Augmentations(auto_augment="trivial"),
    "jitter": Augmentations(color_jitter=(0.4, 0.3, 0.2, 0.1)),
    "erasing": Augmentations(erasing=0.4),
    "mixup": Augmentations(mixup=0.3),
    "cutmix": Augmentations(cutmix=1.0),
    "timm": Augmentations(auto_augment="timm", rand_magnitude_std=0.5),
    "three": Augmentations(three_augment=True),
    "single": Augmentations(grayscale=0.2, blur=0.4, solarize=0.3, solarize_threshold=100, blur_sigma=(0.5, 3.0)),
    "some jitter": Augmentations(color_jitter=(0.4, 0.3, 0.2, 0.1), color_jitter_probability=0.7),
    "all": ALL,
}
# First word of each purpose, which must not change: see _draw_words.
ERASE, JITTER, MIX, AUTO, JITTERED = 0, 23, 28, 33, 81


def words(number: int, count: int = 60) -> np.ndarray:
    return uniforms(random_words(11, 5, np.arange(number), STREAM_BATCH, count))


def plan_of(augment: Augmentations, number: int = 400, size: tuple[int, int] = SIZE) -> AugmentPlan:
    return plan_augmentations(augment, size, BatchKey(11, 5, np.arange(number)))


def magnitude(op: Op, bin_: int, size: tuple[int, int], *, wide: bool) -> float:
    """torchvision's _augmentation_space, in Python's floats."""
    share = bin_ / 30
    if op in (Op.SHEAR_X, Op.SHEAR_Y):
        return share * (0.99 if wide else 0.3)
    if op is Op.TRANSLATE_X:
        return share * (32.0 if wide else 150.0 / 331.0 * size[1])
    if op is Op.TRANSLATE_Y:
        return share * (32.0 if wide else 150.0 / 331.0 * size[0])
    if op is Op.ROTATE:
        return share * (135.0 if wide else 30.0)
    if op in (Op.BRIGHTNESS, Op.COLOR, Op.CONTRAST, Op.SHARPNESS):
        return share * (0.99 if wide else 0.9)
    if op is Op.POSTERIZE:
        return 8 - round(bin_ / (30 / (6 if wide else 4)))
    return 255.0 - 255.0 * share if op is Op.SOLARIZE else 0.0


@pytest.mark.parametrize("size", [(48, 80), (224, 224)], ids=str)
@pytest.mark.parametrize(
    "augment",
    [PARTS["rand"], PARTS["trivial"], Augmentations(auto_augment="rand", rand_ops=4, rand_magnitude=30)],
    ids=["rand", "trivial", "strong"],
)
def test_auto_augment_follows_torchvision(augment: Augmentations, size: tuple[int, int]) -> None:
    plan, draws = plan_of(augment, size=size), words(400)
    rounds = 1 if augment.auto_augment == "trivial" else augment.rand_ops
    assert plan.ops.shape == plan.values.shape == (rounds, 400)
    for round_ in range(rounds):
        for n in range(400):
            which, sign, strength = draws[n, AUTO + 3 * round_ : AUTO + 3 * round_ + 3].tolist()
            op = Op(int(which * 14))
            wide = augment.auto_augment == "trivial"
            expected = magnitude(op, int(strength * 31) if wide else augment.rand_magnitude, size, wide=wide)
            if sign >= 0.5 and op not in (Op.POSTERIZE, Op.SOLARIZE):
                expected = -expected
            if op in (Op.BRIGHTNESS, Op.COLOR, Op.CONTRAST, Op.SHARPNESS):
                expected += 1
            assert plan.ops[round_, n] == op
            if op in (Op.TRANSLATE_X, Op.TRANSLATE_Y):
                expected = math.trunc(expected)
            assert plan.values[round_, n] == pytest.approx(expected, rel=1e-6, abs=1e-6), op


def test_color_jitter_follows_torchvision() -> None:
    plan, draws = plan_of(PARTS["jitter"], 2400), words(2400)
    assert plan.ops.shape == (4, 2400)
    drawn = draws[:, JITTER : JITTER + 4]
    orders = Counter(tuple(column) for column in plan.ops.T.tolist())
    assert len(orders) == 24
    assert min(orders.values()) > 60  # 100 each on average
    for position, (op, strength) in enumerate(
        ((Op.BRIGHTNESS, 0.4), (Op.CONTRAST, 0.3), (Op.COLOR, 0.2), (Op.HUE, 0.1))
    ):
        values = plan.values.T[np.equal(plan.ops.T, op)]
        middle = 0.0 if op is Op.HUE else 1.0
        assert values == pytest.approx(middle - strength + 2 * strength * drawn[:, position])


def test_partial_color_jitter_keeps_the_order() -> None:
    whole, part = plan_of(PARTS["jitter"]), plan_of(Augmentations(color_jitter=(0.0, 0.3, 0.0, 0.1)))
    assert part.ops.shape == (2, 400)
    kept = np.isin(whole.ops.T, (Op.CONTRAST, Op.HUE))
    assert (whole.ops.T[kept] == part.ops.T.ravel()).all()
    assert (whole.values.T[kept] == part.values.T.ravel()).all()
    strong = plan_of(Augmentations(color_jitter=(3.0, 0.0, 0.0, 0.0))).values
    assert 0 <= strong.min() < 0.1  # never below 0, as torchvision cuts it
    assert 3.9 < strong.max() < 4


@pytest.mark.parametrize("size", [(48, 80), (224, 224), (2, 3), (1, 1)], ids=str)
def test_erasing_follows_torchvision(size: tuple[int, int]) -> None:
    (height, width), plan, draws = size, plan_of(PARTS["erasing"], size=size), words(400).tolist()
    for n, (coin, at_x, at_y, *tries) in enumerate(draws):
        expected = (0, 0, 0, 0)
        for attempt in range(10):
            area = height * width * (0.02 + 0.31 * tries[2 * attempt])
            aspect = math.exp(math.log(0.3) + math.log(3.3 / 0.3) * tries[2 * attempt + 1])
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if h < height and w < width:
                left, top = math.floor(at_x * (width - w + 1)), math.floor(at_y * (height - h + 1))
                expected = (left, top, left + w, top + h)
                break
        assert tuple(plan.erased[n]) == (expected if coin < 0.4 else (0, 0, 0, 0)), n


def test_cutmix_follows_torchvision_and_its_share_is_the_area() -> None:
    (height, width), plan, draws = SIZE, plan_of(PARTS["cutmix"]), words(400)[::2]
    assert plan.mixing is not None
    assert plan.mixing.cut.all()
    shares = symmetric_beta(np.ones(200), draws[:, MIX + 1], draws[:, MIX + 2])
    for n, (share, (at_x, at_y)) in enumerate(zip(shares.tolist(), draws[:, MIX + 3 : MIX + 5].tolist(), strict=True)):
        radius = 0.5 * math.sqrt(1 - share)
        x, y, half_w, half_h = int(at_x * width), int(at_y * height), int(radius * width), int(radius * height)
        left, top, right, bottom = plan.mixing.boxes[n].tolist()
        assert (left, top) == (max(x - half_w, 0), max(y - half_h, 0))
        assert (right, bottom) == (min(x + half_w, width), min(y + half_h, height))
        assert plan.mixing.share[n] == pytest.approx(1 - (right - left) * (bottom - top) / (width * height))


def test_mixup_draws_its_share_from_beta() -> None:
    plan, draws = plan_of(PARTS["mixup"]), words(400)[::2]
    assert plan.mixing is not None
    assert not plan.mixing.cut.any()
    assert not plan.mixing.boxes.any()
    expected = symmetric_beta(np.full(200, 0.3), draws[:, MIX + 1], draws[:, MIX + 2])
    assert (plan.mixing.share == expected).all()


def test_with_both_each_pair_is_mixed_one_way_by_a_coin_flip() -> None:
    both = plan_of(Augmentations(mixup=0.3, cutmix=1.0), 2000).mixing
    ways = [plan_of(PARTS[name], 2000).mixing for name in ("mixup", "cutmix")]
    assert both is not None
    assert 440 < both.cut.sum() < 560
    for n, cut in enumerate(both.cut.tolist()):
        one = ways[cut]
        assert one is not None
        assert both.share[n] == one.share[n]
        assert (both.boxes[n] == one.boxes[n]).all()


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 2.0, 8.0])
def test_draws_follow_the_requested_beta_distribution(alpha: float) -> None:
    """Moments and distribution function of 200,000 draws, against numpy's generator; 5 standard errors."""
    number = 200_000
    found = symmetric_beta(np.full(number, alpha), *np.random.default_rng(3).random((2, number)))
    other = np.random.default_rng(4).beta(alpha, alpha, number)
    assert ((found >= 0) & (found <= 1)).all()
    variance = 1 / (4 * (2 * alpha + 1))
    assert found.mean() == pytest.approx(0.5, abs=5 * math.sqrt(variance / number))
    assert found.var() == pytest.approx(variance, rel=0.02)
    edges = np.linspace(0.001, 0.999, 101)
    shares = [(sample[:, None] < edges).mean(0) for sample in (found, other)]
    assert np.abs(shares[0] - shares[1]).max() < 5 * math.sqrt(0.5 / number)


def test_beta_at_the_ends_of_the_uniforms_is_a_number() -> None:
    ends = np.array([0.0, 1 - 2.0**-32, 0.25, 0.5, 0.75])
    u, v = (part.ravel() for part in np.meshgrid(ends, ends))
    for alpha in (1e-3, 1.0, 1e3):
        found = symmetric_beta(np.full(len(u), alpha), u, v)
        assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize("name", PARTS)
def test_the_draws_of_a_sample_do_not_depend_on_its_batch(name: str) -> None:
    """In any order of pairs and next to any others: workers, ranks and batch sizes change nothing."""
    augment = PARTS[name]
    whole = plan_of(augment, 60)
    pairs = np.random.default_rng(0).permutation(30)[:11]
    rows = np.stack((2 * pairs, 2 * pairs + 1), 1).ravel()
    part = plan_augmentations(augment, SIZE, BatchKey(11, 5, rows))
    assert (part.ops == whole.ops[:, rows]).all()
    assert (part.values == whole.values[:, rows]).all()
    assert (part.erased == whole.erased[rows]).all()
    if whole.mixing is not None and part.mixing is not None:
        for one, two in zip(part.mixing, whole.mixing, strict=True):
            assert (one == two[pairs]).all()


def test_one_augmentation_does_not_change_the_draws_of_the_others() -> None:
    whole = plan_of(ALL)
    auto, jitter = (plan_of(PARTS[name]) for name in ("rand", "jitter"))
    assert (whole.ops[:2] == auto.ops).all()
    assert (whole.values[3:] == jitter.values).all()
    assert (whole.erased == plan_of(PARTS["erasing"]).erased).all()
    more = plan_of(replace(ALL, three_augment=True, grayscale=0.5, blur=0.5, solarize=0.5))
    assert (more.ops[[0, 1, 2, 4, 5, 6, 7]] == whole.ops).all()
    assert (more.values[[0, 1, 2, 4, 5, 6, 7]] == whole.values).all()


def test_padding_and_its_partner_in_mixing_are_unchanged() -> None:
    index = np.arange(40)
    index[[5, 8, 9, 39]] = -1
    plan = plan_augmentations(ALL, SIZE, BatchKey(11, 5, index))
    padding = index < 0
    assert (plan.ops[:, padding] == Op.IDENTITY).all()
    assert (plan.ops[:, ~padding] != Op.IDENTITY).any(0).all()
    assert not plan.erased[padding].any()
    alone = padding[::2] | padding[1::2]
    assert plan.mixing is not None
    assert (plan.mixing.share[alone] == 1).all()
    assert not plan.mixing.boxes[alone].any()
    assert (plan.mixing.share[~alone] < 1).all()
