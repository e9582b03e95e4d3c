"""The plan of the batch stage: augmentations of each sample, a pure function of (seed, epoch, sample index)."""

from __future__ import annotations

import itertools
import math
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.augmentations import MAX_RAND_OPS, RAND_BINS, TIMM_MAGNITUDE, Augmentations
from penstock.pipelines.plan.crops import draw_sides
from penstock.pipelines.plan.philox import STREAM_BATCH, random_words, uniforms, view_stream

_TRIES = 10  # torchvision.transforms.RandomErasing.get_params
_ERASING_SCALE, _ERASING_RATIO = (0.02, 0.33), (0.3, 3.3)
# Columns of a sample's draws. Each augmentation has its own, so that enabling one does not change the draws of the
# others.
_ERASE, _ERASE_X, _ERASE_Y, _FIRST_TRY = range(4)
_JITTER, _JITTER_ORDER = _FIRST_TRY + 2 * _TRIES, _FIRST_TRY + 2 * _TRIES + 4
_MIX_KIND, _MIX_SHARE, _MIX_ANGLE, _MIX_X, _MIX_Y = range(_JITTER_ORDER + 1, _JITTER_ORDER + 6)
_FIRST_OP = _MIX_Y + 1
_WORDS_OF_AN_OP = 3  # the operation, its sign, its magnitude
_JITTERED = _FIRST_OP + _WORDS_OF_AN_OP * MAX_RAND_OPS
_GREY, _BLURRED, _SIGMA, _SOLARIZED, _THREE, _SIGMA_OF_THREE = range(_JITTERED + 1, _JITTERED + 7)
_FIRST_EXTRA = _SIGMA_OF_THREE + 1
_EXTRA_WORDS = 3  # for timm's operations: whether it is applied, the second word of its magnitude, its interpolation

Floats = npt.NDArray[np.float64]


class Op(IntEnum):
    """Number the operations on uint8 pixels; the first 14 are those of RandAugment, in torchvision's order.

    The last ten move pixels like operations 1 to 5, but interpolate instead of taking the nearest pixel.
    """

    IDENTITY = 0
    SHEAR_X = 1
    SHEAR_Y = 2
    TRANSLATE_X = 3
    TRANSLATE_Y = 4
    ROTATE = 5
    BRIGHTNESS = 6
    COLOR = 7
    CONTRAST = 8
    SHARPNESS = 9
    POSTERIZE = 10
    SOLARIZE = 11
    AUTO_CONTRAST = 12
    EQUALIZE = 13
    HUE = 14
    GRAYSCALE = 15
    SOLARIZE_ADD = 16
    BLUR = 17
    SHEAR_X_BILINEAR = 18
    SHEAR_Y_BILINEAR = 19
    TRANSLATE_X_BILINEAR = 20
    TRANSLATE_Y_BILINEAR = 21
    ROTATE_BILINEAR = 22
    SHEAR_X_BICUBIC = 23
    SHEAR_Y_BICUBIC = 24
    TRANSLATE_X_BICUBIC = 25
    TRANSLATE_Y_BICUBIC = 26
    ROTATE_BICUBIC = 27


_NUM_AUTO_OPS = 14
_THREE_THRESHOLD = 128  # of solarize in DeiT III's three_augment
_BLENDS = (Op.BRIGHTNESS, Op.COLOR, Op.CONTRAST, Op.SHARPNESS)
_TRANSLATIONS = (Op.TRANSLATE_X, Op.TRANSLATE_Y)
_SIGNED = np.isin(np.arange(_NUM_AUTO_OPS), (Op.SHEAR_X, Op.SHEAR_Y, *_TRANSLATIONS, Op.ROTATE, *_BLENDS))
# timm/data/auto_augment.py of pytorch-image-models: _RAND_INCREASING_TRANSFORMS, in the same order
_TIMM_OPS = np.array(
    (
        *(Op.AUTO_CONTRAST, Op.EQUALIZE, Op.SOLARIZE, Op.ROTATE, Op.POSTERIZE, Op.SOLARIZE, Op.SOLARIZE_ADD),
        *(Op.COLOR, Op.CONTRAST, Op.BRIGHTNESS, Op.SHARPNESS, Op.SHEAR_X, Op.SHEAR_Y, *_TRANSLATIONS),
    ),
    np.int8,
)
_INVERT = 2  # index of timm's Invert in this list: solarize from level 0 on
_JITTER_OPS = (Op.BRIGHTNESS, Op.CONTRAST, Op.COLOR, Op.HUE)
_JITTER_ORDERS = np.array(list(itertools.permutations(_JITTER_OPS)), np.int8)


class BatchKey(NamedTuple):
    """The key of a batch: all draws of its augmentations are a function of it.

    Attributes:
        seed: the loader's seed, in [0, 2**64).
        epoch: number of the epoch, in [0, 2**32).
        indices: numbers of the samples in the data set, int64 [batch]; -1 in padding rows.
        view: number of the view of each sample.
    """

    seed: int
    epoch: int
    indices: npt.NDArray[np.int64]
    view: int = 0


class Mixing(NamedTuple):
    """Describe how pairs of samples are mixed: element k is for rows 2k and 2k + 1 of the batch.

    Attributes:
        share: the share that each image of a pair keeps of itself, float64 [batch / 2]; 1 for a pair that is not mixed.
        cut: whether the pair exchanges a box instead of being blended, bool [batch / 2].
        boxes: left, top, right, bottom of the exchanged box, int32 [batch / 2, 4], pixels.
    """

    share: Floats
    cut: npt.NDArray[np.bool_]
    boxes: npt.NDArray[np.int32]

    def part(self, pairs: slice) -> Mixing:
        """Return what is done to some of the pairs."""
        return Mixing._make(each[pairs] for each in self)


class AugmentPlan(NamedTuple):
    """Describe what the batch stage does to each sample of a batch, and to each pair of samples.

    Attributes:
        ops: operations (Op) on uint8 pixels, one round after another, int8 [rounds, batch].
        values: the operations' parameters, float64 [rounds, batch]: slope of a shear, pixels of a translation, degrees
            of a rotation (counter-clockwise), factor of a blend (brightness, colour, contrast, sharpness), bits that
            posterize keeps, threshold of solarize, turn of the hue in [-0.5, 0.5] of the circle, levels that solarize
            adds below 128, standard deviation of a blur in pixels.
        erased: left, top, right, bottom of the erased box, int32 [batch, 4], pixels; an empty box if nothing is erased.
        mixing: None if no samples are mixed.
    """

    ops: npt.NDArray[np.int8]
    values: Floats
    erased: npt.NDArray[np.int32]
    mixing: Mixing | None

    def part(self, begin: int, end: int) -> AugmentPlan:
        """Return what is done to the rows from `begin` to `end`; these are even, or the ends of the batch."""
        mixing = None if self.mixing is None else self.mixing.part(slice(begin // 2, (end + 1) // 2))
        return AugmentPlan(self.ops[:, begin:end], self.values[:, begin:end], self.erased[begin:end], mixing)


def plan_augmentations(augment: Augmentations, size: tuple[int, int], key: BatchKey) -> AugmentPlan:
    """Draw the augmentations of a batch of images of `size` (height, width in pixels); padding rows have none.

    Raises ValueError for a seed or an epoch out of range, as `random_words` does.
    """
    stream = view_stream(STREAM_BATCH, key.view)
    draws = uniforms(random_words(key.seed, key.epoch, key.indices, stream, _count_words(augment)))
    draw_policy = _draw_timm if augment.auto_augment == "timm" else _draw_auto_augment
    parts = [draw_policy(augment, size, draws), _draw_color_jitter(augment, draws)]
    parts[1:1] = [_draw_one_of_three(augment, draws)] if augment.three_augment else []
    parts += _draw_single_ops(augment, draws)
    ops, values = (np.concatenate(pair, 0) for pair in zip(*parts, strict=True))
    padding = key.indices < 0
    ops[:, padding] = Op.IDENTITY
    erased = _draw_erased_boxes(augment.erasing, size, draws)
    erased[padding] = 0
    mixing = _draw_mixing(augment, size, draws[::2], padding) if augment.mixes else None
    return AugmentPlan(ops, values, erased, mixing)


def _count_words(augment: Augmentations) -> int:
    """Return the number of words needed per sample: few settings need the words after the last operation."""
    if augment.auto_augment == "timm":
        return _FIRST_EXTRA + _EXTRA_WORDS * augment.rand_ops
    probabilities = (augment.grayscale, augment.blur, augment.solarize, 1 - augment.color_jitter_probability)
    if augment.three_augment or any(probabilities):
        return _FIRST_EXTRA
    return _FIRST_OP + _WORDS_OF_AN_OP * count_rounds(augment)


def count_rounds(augment: Augmentations) -> int:
    """Return how many operations auto_augment draws for each image."""
    return {None: 0, "rand": augment.rand_ops, "trivial": 1, "timm": augment.rand_ops}[augment.auto_augment]


@lru_cache(maxsize=16)
def _tabulate_magnitudes(kind: str, size: tuple[int, int]) -> Floats:
    """Tabulate torchvision's `_augmentation_space`: magnitude by operation and bin, float64 [14, 31].

    In float64, because torchvision's float32 depends on the processor: some turn a translation by 16 pixels into 15.
    """
    wide = kind == "trivial"
    height, width = size
    limits = {Op.SHEAR_X: 0.99 if wide else 0.3, Op.SHEAR_Y: 0.99 if wide else 0.3}
    limits |= {Op.TRANSLATE_X: 32.0 if wide else 150.0 / 331.0 * width}
    limits |= {Op.TRANSLATE_Y: 32.0 if wide else 150.0 / 331.0 * height}
    limits |= {Op.ROTATE: 135.0 if wide else 30.0} | dict.fromkeys(_BLENDS, 0.99 if wide else 0.9)
    bins, table = np.arange(RAND_BINS), np.zeros((_NUM_AUTO_OPS, RAND_BINS))
    for op, limit in limits.items():
        table[op] = limit * bins / (RAND_BINS - 1)
    table[Op.POSTERIZE] = 8 - np.rint(bins / ((RAND_BINS - 1) / (6 if wide else 4)))
    table[Op.SOLARIZE] = 255.0 - 255.0 * bins / (RAND_BINS - 1)
    return table


def _draw_auto_augment(
    augment: Augmentations, size: tuple[int, int], draws: Floats
) -> tuple[npt.NDArray[np.int8], Floats]:
    """Draw RandAugment's or TrivialAugmentWide's operations and their values, both [rounds, batch]."""
    kind, batch = augment.auto_augment, len(draws)
    if kind is None:
        return np.empty((0, batch), np.int8), np.empty((0, batch))
    words = _words_of_ops(draws, _FIRST_OP, count_rounds(augment))
    ops = np.floor(words[0] * _NUM_AUTO_OPS).astype(np.int8)
    bins = np.floor(words[2] * RAND_BINS).astype(np.int64) if kind == "trivial" else augment.rand_magnitude
    values = _tabulate_magnitudes(kind, size)[ops, bins]
    values = np.where(_SIGNED[ops] & (words[1] >= 0.5), -values, values)
    values = np.where(np.isin(ops, _BLENDS), 1.0 + values, values)
    return ops, np.where(np.isin(ops, _TRANSLATIONS), np.trunc(values), values)


def _words_of_ops(draws: Floats, first: int, rounds: int) -> Floats:
    """Return the three words of each operation, starting at column `first`: float64 [3, rounds, batch]."""
    return draws[:, first : first + 3 * rounds].reshape(len(draws), rounds, 3).transpose(2, 1, 0)


def _draw_timm(augment: Augmentations, size: tuple[int, int], draws: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Draw the operations of timm's RandAugment, each skipped with probability 1/2, and their values.

    Both are [rounds, batch]. The magnitude is normal (Box-Muller), clipped to [0, 10], and converted to a value as by
    timm's functions *_increasing_level_to_arg.
    """
    which, sign, first = _words_of_ops(draws, _FIRST_OP, augment.rand_ops)
    applied, second, interpolation = _words_of_ops(draws, _FIRST_EXTRA, augment.rand_ops)
    normal = np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2 * math.pi * second)
    share = np.clip(augment.rand_magnitude + augment.rand_magnitude_std * normal, 0, TIMM_MAGNITUDE) / TIMM_MAGNITUDE
    height, width = size
    signed = np.where(sign >= 0.5, -share, share)
    value_of = np.zeros((len(Op), *share.shape))
    value_of[[Op.SHEAR_X, Op.SHEAR_Y]] = 0.3 * signed
    # Positive shares move the image to the left and up: Pillow's matrix maps output pixels to source pixels.
    value_of[Op.TRANSLATE_X], value_of[Op.TRANSLATE_Y] = -0.45 * width * signed, -0.45 * height * signed
    value_of[Op.ROTATE] = 30.0 * signed
    value_of[list(_BLENDS)] = np.maximum(0.1, 1.0 + 0.9 * signed)
    value_of[Op.POSTERIZE] = 4 - np.trunc(4 * share)
    value_of[Op.SOLARIZE] = 256 - np.trunc(256 * share)
    value_of[Op.SOLARIZE_ADD] = np.trunc(110 * share)
    places = np.floor(which * len(_TIMM_OPS)).astype(np.int64)
    ops = _TIMM_OPS[places]
    values = np.take_along_axis(value_of, ops[None].astype(np.int64), 0)[0]
    values[places == _INVERT] = 0.0
    kernels = np.where(interpolation < 0.5, Op.ROTATE_BILINEAR - Op.ROTATE, Op.ROTATE_BICUBIC - Op.ROTATE)
    ops = np.where((ops >= Op.SHEAR_X) & (ops <= Op.ROTATE), ops + kernels, ops)
    return np.where(applied < 0.5, ops, Op.IDENTITY).astype(np.int8), values


def _draw_one_of_three(augment: Augmentations, draws: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Draw grey, solarize or blur for each image, as DeiT III does: both [1, batch]."""
    ops = np.array((Op.GRAYSCALE, Op.SOLARIZE, Op.BLUR), np.int8)[np.floor(draws[:, _THREE] * 3).astype(np.int64)]
    sigmas = _scale(draws[:, _SIGMA_OF_THREE], augment.blur_sigma)
    return ops[None], np.where(ops == Op.BLUR, sigmas, np.where(ops == Op.SOLARIZE, _THREE_THRESHOLD, 0.0))[None]


def _draw_single_ops(augment: Augmentations, draws: Floats) -> list[tuple[npt.NDArray[np.int8], Floats]]:
    """Draw the operations that each have a separate probability: a list of (ops, values), both [1, batch]."""
    parts = []
    for op, probability, coin in (
        (Op.GRAYSCALE, augment.grayscale, _GREY),
        (Op.BLUR, augment.blur, _BLURRED),
        (Op.SOLARIZE, augment.solarize, _SOLARIZED),
    ):
        if probability:
            value: Floats | float = augment.solarize_threshold if op == Op.SOLARIZE else 0.0
            value = _scale(draws[:, _SIGMA], augment.blur_sigma) if op == Op.BLUR else value
            ops = np.where(draws[:, coin] < probability, op, Op.IDENTITY).astype(np.int8)
            parts.append((ops[None], np.full((1, len(draws)), value, np.float64)))
    return parts


def _scale(draws: Floats, limits: tuple[float, float]) -> Floats:
    return limits[0] + (limits[1] - limits[0]) * draws


def _draw_color_jitter(augment: Augmentations, draws: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Draw ColorJitter's operations, in a separate order for each sample, and their values: both [rounds, batch]."""
    batch = len(draws)
    strength = np.array(augment.color_jitter if augment.color_jitter and augment.jitters else (0.0,) * 4)
    wanted = [op for op, s in zip(_JITTER_OPS, strength.tolist(), strict=True) if s > 0]
    low = np.array([*np.maximum(0.0, 1 - strength[:3]), -strength[3]])
    high = np.array([*(1 + strength[:3]), strength[3]])
    value_of = np.zeros((batch, len(Op)))
    value_of[:, _JITTER_OPS] = low + (high - low) * draws[:, _JITTER:_JITTER_ORDER]
    ordered = _JITTER_ORDERS[np.floor(draws[:, _JITTER_ORDER] * len(_JITTER_ORDERS)).astype(np.int64)]
    ops = ordered[np.isin(ordered, wanted)].reshape(batch, len(wanted))
    values = np.take_along_axis(value_of, ops.astype(np.int64), 1)
    if augment.color_jitter_probability < 1:
        ops[draws[:, _JITTERED] >= augment.color_jitter_probability] = Op.IDENTITY
    return ops.T, values.T


def _draw_erased_boxes(probability: float, size: tuple[int, int], draws: Floats) -> npt.NDArray[np.int32]:
    """Draw boxes as torchvision's RandomErasing does: the first of ten tries smaller than the image, or none."""
    height, width = size
    tries = draws[:, _FIRST_TRY : _FIRST_TRY + 2 * _TRIES]
    tried_h, tried_w = draw_sides(tries, height * width, _ERASING_SCALE, _ERASING_RATIO)
    fits = (tried_h < height) & (tried_w < width)
    rows, first = np.arange(len(draws)), np.argmax(fits, axis=1)
    h, w = tried_h[rows, first], tried_w[rows, first]
    top = np.floor(draws[:, _ERASE_Y] * (height - h + 1))
    left = np.floor(draws[:, _ERASE_X] * (width - w + 1))
    boxes = np.stack((left, top, left + w, top + h), 1)
    boxes[~(fits[rows, first] & (draws[:, _ERASE] < probability))] = 0
    return boxes.astype(np.int32)


def _draw_mixing(
    augment: Augmentations, size: tuple[int, int], draws: Floats, padding: npt.NDArray[np.bool_]
) -> Mixing:
    """Draw mixup or cutmix for each pair, from the `draws` of its even row; `padding` is bool [batch]."""
    height, width = size
    cut = draws[:, _MIX_KIND] < 0.5 if augment.mixup and augment.cutmix else np.full(len(draws), augment.cutmix > 0)
    alpha = np.where(cut, augment.cutmix or 1.0, augment.mixup or 1.0)
    share = symmetric_beta(alpha, draws[:, _MIX_SHARE], draws[:, _MIX_ANGLE])
    # torchvision.transforms.v2.CutMix.make_params
    radius = 0.5 * np.sqrt(1.0 - share)
    x, y = np.floor(draws[:, _MIX_X] * width), np.floor(draws[:, _MIX_Y] * height)
    half_w, half_h = np.trunc(radius * width), np.trunc(radius * height)
    left, top = np.maximum(x - half_w, 0), np.maximum(y - half_h, 0)
    right, bottom = np.minimum(x + half_w, width), np.minimum(y + half_h, height)
    share = np.where(cut, 1.0 - (right - left) * (bottom - top) / (height * width), share)
    boxes = np.where(cut[:, None], np.stack((left, top, right, bottom), 1), 0)
    alone = padding[::2] | padding[1::2]
    share[alone], boxes[alone] = 1.0, 0
    return Mixing(share, cut, boxes.astype(np.int32))


def symmetric_beta(alpha: Floats, u: Floats, v: Floats) -> Floats:
    """Turn two uniforms in [0, 1) into one Beta(alpha, alpha) variate, without rejection; all arrays [n].

    Bailey's polar method gives Student's t with 2 alpha degrees of freedom, and (1 + t / sqrt(2 alpha + t^2)) / 2 is
    Beta(alpha, alpha). Bailey, "Polar generation of random variates with the t-distribution", Math. Comp. 62, 1994.
    """
    cosine = np.cos(2 * math.pi * v)
    with np.errstate(over="ignore", divide="ignore"):
        inverse = 1.0 / (np.power(1.0 - u, -1.0 / alpha) - 1.0) / cosine**2  # 2 alpha / t^2
    shares: Floats = 0.5 + 0.5 * np.sign(cosine) / np.sqrt(1.0 + inverse)
    return shares
