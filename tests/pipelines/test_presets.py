"""Presets: each has the settings of its paper's tables, and changes pixels as the paper's code does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from augment_images import images_of, share_off
from PIL import Image
from recipe_references import RECIPES, WORDS, apply_step

from penstock.pipelines import presets
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, Op
from penstock.pipelines.plan.philox import STREAM_BATCH, random_words, uniforms
from penstock.pipelines.spec import IMAGENET_MEAN, IMAGENET_STD, ImagePipeline, checked_views

SIZE = (48, 56)
# Sizes, crop scales, mean, mixup and cutmix: table 2 of "ResNet strikes back"; README_revenge.md of DeiT III; SimCLR's
# appendix A; the arguments of DINO's main_dino.py. Filters: the recipes' code.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "timm_a1": (224, (0.08, 1.0), IMAGENET_MEAN, 0.2, 1.0),
    "timm_a2": (224, (0.08, 1.0), IMAGENET_MEAN, 0.1, 1.0),
    "timm_a3": (160, (0.08, 1.0), IMAGENET_MEAN, 0.1, 1.0),
    "deit3": (224, (0.08, 1.0), IMAGENET_MEAN, 0.8, 1.0),
    "simclr_view": (224, (0.08, 1.0), (0, 0, 0), 0, 0),
    "dino_global_1": (224, (0.4, 1.0), IMAGENET_MEAN, 0, 0),
    "dino_global_2": (224, (0.4, 1.0), IMAGENET_MEAN, 0, 0),
    "dino_local": (96, (0.05, 0.4), IMAGENET_MEAN, 0, 0),
}


def preset(name: str, **settings: Any) -> ImagePipeline:
    made: ImagePipeline = getattr(presets, name)(**settings)
    return made


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_those_of_the_tables(name: str) -> None:
    made, (size, scale, mean, mixup, cutmix) = preset(name), SETTINGS[name]
    assert (made.size, made.crop, made.scale, made.ratio, made.flip) == (
        *((size, size), "random_resized", scale, (3 / 4, 4 / 3), 0.5),
    )
    assert (made.mean, made.std) == (mean, IMAGENET_STD if mean == IMAGENET_MEAN else (1, 1, 1))
    assert (made.augment.mixup, made.augment.cutmix, made.augment.erasing) == (mixup, cutmix, 0)
    filters = {"timm": "random", "deit": "bicubic", "simc": "bicubic", "dino": "bicubic"}
    assert made.interpolation == filters[name[:4]]
    changed = preset(name, size=(20, 30), flip=0.0, mixup=0.7, exif="apply")  # a recipe's settings can be overridden
    assert (changed.size, changed.flip, changed.augment.mixup, changed.exif) == ((20, 30), 0.0, 0.7, "apply")
    assert changed.augment == replace(made.augment, mixup=0.7)


_NAMES = {Op.AUTO_CONTRAST: "AutoContrast", Op.EQUALIZE: "Equalize", Op.POSTERIZE: "PosterizeIncreasing"}
_NAMES |= {Op.SOLARIZE_ADD: "SolarizeAdd", Op.GRAYSCALE: "Grey", Op.BLUR: "Blur", Op.HUE: "Hue"}
_NAMES |= {Op.CONTRAST: "Contrast", Op.BRIGHTNESS: "Brightness", Op.SHARPNESS: "Sharpness"}
_MOVES = ("ShearX", "ShearY", "TranslateXRel", "TranslateYRel", "Rotate")


def name_of(op: Op, value: float, *, timm: bool) -> str:
    """Return the reference's name for an operation of a plan."""
    if op >= Op.SHEAR_X_BILINEAR:
        kernel = "bilinear" if op < Op.SHEAR_X_BICUBIC else "bicubic"
        return f"{_MOVES[(op - Op.SHEAR_X_BILINEAR) % 5]} {kernel}"
    if op is Op.SOLARIZE:
        return "Invert" if value == 0 else "SolarizeIncreasing"
    return ("Color" if timm else "Saturation") if op is Op.COLOR else _NAMES[op]


def steps_of(plan: AugmentPlan, row: int, *, timm: bool) -> list[tuple[str, float]]:
    """Return the steps of a plan for an image, in the reference's terms."""
    steps, pixels = [], {"TranslateXRel": SIZE[1], "TranslateYRel": SIZE[0]}
    for op, value in zip(plan.ops[:, row].tolist(), plan.values[:, row].tolist(), strict=True):
        if op != Op.IDENTITY:
            name = name_of(Op(op), value, timm=timm)
            kind = name.partition(" ")[0]
            steps.append((name, -value / pixels[kind] if kind in pixels else value))
    return steps


@pytest.mark.parametrize("name", RECIPES)
def test_a_preset_equals_its_reference_for_the_same_draws(name: str) -> None:
    number = 150
    made = preset(name, size=SIZE, mixup=0.0, cutmix=0.0)
    fill = tuple(round(255 * mean) for mean in made.mean)
    images, rows = images_of(number, SIZE), np.arange(number)
    stage = BatchStage(made, torch.uint8, torch.device("cpu"))
    plan = stage.plan(BatchKey(7, 3, rows))
    assert plan is not None
    found = stage(torch.from_numpy(images), plan=plan).permute(0, 2, 3, 1)
    draws = uniforms(random_words(7, 3, rows, STREAM_BATCH, max(WORDS.values()) + 1))
    off = []
    for row, (image, ours, words) in enumerate(zip(images, found, draws.tolist(), strict=True)):
        expected = Image.fromarray(image)
        steps = RECIPES[name](lambda what, words=words: words[WORDS[what]])  # type: ignore[misc]
        planned = steps_of(plan, row, timm="timm" in name)
        assert [step for step, _ in planned] == [step for step, _ in steps]
        assert [value for _, value in planned] == pytest.approx([value for _, value in steps])
        for step, value in steps:
            expected = apply_step(expected, step, value, fill)  # type: ignore[arg-type]
        off.append(share_off(ours, np.asarray(expected), levels=1))
    # A second operation, such as equalize, can amplify a rounding difference.
    assert max(off) <= 0.05
    assert np.mean(off) <= 0.0005
    assert share_off(found, images) > 0.3


def test_views_of_simclr_and_dino() -> None:
    assert presets.simclr(32, strength=0.5, blur=0.0) == (presets.simclr_view(32, strength=0.5, blur=0.0),) * 2
    assert presets.simclr_view(strength=0.5).augment.color_jitter == (0.4, 0.4, 0.4, 0.1)
    views = checked_views(presets.dino(196, local_size=80, local_views=3))
    assert [view.size[0] for view in views] == [196, 196, 80, 80, 80]
    assert [view.augment.blur for view in views] == [1.0, 0.1, 0.5, 0.5, 0.5]
    assert checked_views(presets.simclr()) == presets.simclr()


def test_crops_of_other_recipes_are_those_of_their_references() -> None:
    """DeiT's Resize(64), RandomCrop(64, padding=4); torchvision's presets of segmentation and of detection with lsj."""
    made = presets.deit3_21k(64)
    assert (made.crop, made.size, made.shorter_side, made.padding, made.flip) == ("random", (64, 64), (64, 64), 4, 0.5)
    assert (made.mean, made.augment.mixup, made.augment.cutmix, made.augment.erasing) == (IMAGENET_MEAN, 0, 1.0, 0)
    assert presets.deit3_21k((48, 80)).shorter_side == (80, 80)
    assert presets.deit3_21k().size == (224, 224)
    masks = presets.segmentation_train()
    assert (masks.crop, masks.size, masks.shorter_side, masks.padding) == ("random", (480, 480), (260, 1040), 0)
    boxes = presets.detection_train()
    assert (boxes.crop, boxes.size, boxes.jitter) == ("scale_jitter", (1024, 1024), (0.1, 2.0))
    assert (boxes.align, boxes.fill) == ("top_left", (123, 117, 104))
