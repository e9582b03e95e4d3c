"""Settings of both stages: impossible settings raise at construction, with their names."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.spec import (
    CROPS,
    DEFAULT_MAX_PIXELS,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Crop,
    ImagePipeline,
    imagenet_eval,
    imagenet_train,
)

NAN, INF = float("nan"), float("inf")
IMPOSSIBLE: dict[str, list[Any]] = {
    "size": [(0, 1), (1, 16385), (224,), (3, 4, 5), (-1, 5), (224.5, 224), (224.0, 224.0), (NAN, 1)],
    "crop": ["", "centre", "random_crop", None],
    "scale": [(0, 1), (0.5, 0.4), (0.5, 1.1), (NAN, 1), (0.1, NAN), (0.5,), (0.1, 0.5, 1.0), (-0.1, 1)],
    "ratio": [(0, 1), (2, 1), (1, INF), (NAN, 1), (1, NAN), (1,), (0.5, 1, 2), (-1, 1)],
    "center_fraction": [0, -0.1, 1.01, NAN],
    "shorter_side": [0, 16385, 1.5, True, (1, 2, 3), (5, 4), "224"],
    "resize_first": [0, 1, None, "yes"],
    "padding": [-1, 1.0, None, True],
    "jitter": [(0, 1), (2, 1), (1, 101), (NAN, 1), 1.0],
    "align": ["", "left", None],
    "fill": [-1, 256, 0.5, (1, 2), (1, 2, 3, 4), (0, 0, 256), "red", None],
    "rotate90": [-0.1, 1.1, NAN, None, True],
    "vertical_flip": [-0.1, 1.1, NAN, None],
    "flip": [-0.1, 1.1, NAN],
    "channels": [0, 2, 4, 1.0, True, None],
    "longer_side": [0, 16385, 2.5, "a"],
    "max_output_pixels": [0, 2.5, None, "a"],
    "depth": [0, 1, 10, 64, 16.0, None],
    "mean": [(0.5, 0.5), (0.5,) * 4, (0.5, 0.5, NAN), (INF, 0.5, 0.5)],
    "std": [(0.5, 0.5), (0.5, 0.5, 0), (0.5, 0.5, -1), (0.5, 0.5, NAN), (0.5, 0.5, INF)],
    "exif": ["", "yes", True],
    "interpolation": ["", "linear", "BICUBIC", 3, None],
    "resample": ["", "cv2", None],
    "max_pixels": [0, -5],
    "augment": [None, "rand", {}],
}
IMPOSSIBLE_AUGMENTATIONS: dict[str, list[Any]] = {
    "auto_augment": ["", "randaugment", True, 9],
    "rand_ops": [0, -1, 17, 2.0, True, None],
    "rand_magnitude": [-1, 31, 9.0, True, None],
    "rand_magnitude_std": [-0.1, NAN, INF, None, True, "0.5"],
    "three_augment": [1, None, "yes"],
    "color_jitter_probability": [-0.1, 1.1, NAN, None, True],
    "grayscale": [-0.1, 1.1, NAN, None, True],
    "blur": [-0.1, 1.1, NAN, None, True],
    "blur_sigma": [(0, 1), (2, 1), (0.1, 10.5), (0.1,), 2.0, (NAN, 1), None],
    "solarize": [-0.1, 1.1, NAN, None, True],
    "solarize_threshold": [-1, 257, 128.0, None, True],
    "color_jitter": [
        *(0.4, (0.4, 0.4, 0.4), "0.4", (-0.1, 0, 0, 0), (0, 0, 0, 0.51)),
        *((NAN, 0, 0, 0), (0, INF, 0, 0), ("0.4", 0, 0, 0), (True, 0, 0, 0)),
    ],
    "erasing": [-0.1, 1.1, NAN, None, "0.5", True],
    "mixup": [-0.1, NAN, INF, None, True, "0.2"],
    "cutmix": [-0.1, NAN, INF, None, True, "1"],
}


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (make, name, value)
        for make, settings in ((ImagePipeline, IMPOSSIBLE), (Augmentations, IMPOSSIBLE_AUGMENTATIONS))
        for name, values in settings.items()
        for value in values
    ],
)
def test_impossible_settings_raise_and_are_named(make: Any, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        make(**{name: value})


def test_every_setting_is_checked() -> None:
    assert set(IMPOSSIBLE) == {field.name for field in dataclasses.fields(ImagePipeline)}
    assert set(IMPOSSIBLE_AUGMENTATIONS) == {field.name for field in dataclasses.fields(Augmentations)}


GREY = {"channels": 1, "mean": 0.5, "std": 1}


@pytest.mark.parametrize(
    ("named", "settings"),
    [
        ("padding is for crop='random'", {"padding": 4}),
        ("padding must be less", {"crop": "random", "size": (32, 4), "padding": 4}),
        ("shorter_side is for", {"crop": "letterbox", "shorter_side": 256}),
        ("shorter_side must be one number", {"crop": "center", "shorter_side": (256, 480)}),
        ("align is for", {"crop": "random", "align": "top_left"}),
        ("align='center_down' is for", {"crop": "center", "align": "center_down"}),
        ("align='center_down' is for", {"crop": "letterbox", "resize_first": True, "align": "center_down"}),
        ("align='center_down' is for", {"align": "center_down"}),
        ("resize_first is for", {"resize_first": True}),
        ("center_fraction must be a number", {"crop": "full", "resize_first": True, "center_fraction": None}),
        ("resize_first .*cannot be combined", {"size": None, "crop": "full", "resize_first": True, "flip": 0}),
        ("rotate90 needs a square size", {"size": (32, 33), "rotate90": 0.5}),
        ("flip must be 0", {"crop": "ten"}),
        ("mean must be one number with channels=1", {"channels": 1}),
        ("std must be one number with channels=1", {"channels": 1, "mean": 0.5}),
        ("mean must be", {"mean": 0.5}),
        ("resample must be 'torch' with depth=16", {"depth": 16, "resample": "pillow"}),
        ("depth must be 8", {"depth": 16, "augment": Augmentations(auto_augment="rand")}),
        ("saturation and hue 0", {**GREY, "augment": Augmentations(color_jitter=(0, 0, 1, 0))}),
    ],
)
def test_settings_that_contradict_each_other_raise(named: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=named):
        ImagePipeline(**settings)


def test_short_forms_of_settings() -> None:
    grey = ImagePipeline(crop="random", shorter_side=256, fill=7, channels=1, mean=0.5, std=(0.25,))  # type: ignore[arg-type]
    assert (grey.fill, grey.mean, grey.std) == ((7, 7, 7), (0.5,), (0.25,))
    assert (grey.shorter_side, grey.sample_dtype) == ((256, 256), np.uint8)
    assert ImagePipeline(depth=16).sample_dtype == np.uint16
    assert [ImagePipeline(crop=crop, flip=0).num_views for crop in ("five", "ten", "center")] == [5, 10, 1]


def test_the_limits_themselves_are_valid() -> None:
    edge = ImagePipeline(
        size=(1, 16384), scale=(1, 1), ratio=(1, 1), center_fraction=1, flip=1, std=(1e-9, 1, 1), max_pixels=1
    )
    assert edge.size == (1, 16384)
    assert ImagePipeline(flip=0).flip == 0
    for magnitude, ops in ((0, 1), (30, 16)):
        most = Augmentations(rand_magnitude=magnitude, rand_ops=ops, color_jitter=(3, 3, 3, 0.5), erasing=1, mixup=1e-3)
        assert (most.rand_magnitude, most.erasing) == (magnitude, 1)


def test_timms_magnitudes_end_at_ten() -> None:
    assert Augmentations(auto_augment="timm", rand_magnitude=10).rand_magnitude == 10
    with pytest.raises(ValueError, match="rand_magnitude must be from 0 to 10, got 11"):
        Augmentations(auto_augment="timm", rand_magnitude=11)


def test_frozen_hashable_keyword_only_and_picklable() -> None:
    augment = Augmentations(auto_augment="trivial", color_jitter=(0.4, 0.4, 0.4, 0.1))
    plain, augmented = ImagePipeline(), ImagePipeline(augment=augment)
    for settings, field in ((plain, "flip"), (augmented, "flip"), (augment, "mixup")):
        assert {settings: 1}[pickle.loads(pickle.dumps(settings))] == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field, 0.0)
    assert len({plain, augmented, ImagePipeline(flip=0.25)}) == 3
    with pytest.raises(TypeError):
        ImagePipeline((224, 224))  # type: ignore[misc]


def test_defaults_are_torchvisions() -> None:
    pipeline = ImagePipeline()
    assert (pipeline.scale, pipeline.ratio, pipeline.flip) == ((0.08, 1.0), (3 / 4, 4 / 3), 0.5)
    assert (pipeline.mean, pipeline.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert (pipeline.exif, pipeline.max_pixels) == ("ignore", DEFAULT_MAX_PIXELS)


@pytest.mark.parametrize("crop", CROPS)
def test_random_is_whether_anything_is_drawn(crop: Crop) -> None:
    still = ImagePipeline(crop=crop, flip=0)
    assert still.random is (crop in ("random_resized", "random", "scale_jitter"))
    turns = () if crop == "none" else ("vertical_flip", "rotate90")
    for setting in turns + (() if crop in ("ten", "none") else ("flip",)):
        assert dataclasses.replace(still, **{setting: 0.5}).random


def test_presets() -> None:
    train = imagenet_train(160, flip=0.0, exif="apply")
    assert (train.size, train.crop, train.flip, train.exif) == ((160, 160), "random_resized", 0.0, "apply")
    assert imagenet_train((100, 200)).size == (100, 200)
    assert imagenet_train() == ImagePipeline()
    evaluation = imagenet_eval(192, center_fraction=1.0)
    assert (evaluation.size, evaluation.crop, evaluation.center_fraction) == ((192, 192), "center", 1.0)
    assert evaluation.random is False
    with pytest.raises(ValueError, match="flip"):
        imagenet_train(flip=2)
    with pytest.raises(TypeError):
        imagenet_train(colour="blue")


def test_an_evaluation_takes_every_setting_that_is_not_random() -> None:
    given = {"mean": (0.5,) * 3, "std": (0.2,) * 3, "interpolation": "bicubic", "exif": "apply", "depth": 16}
    evaluation = imagenet_eval((64, 48), center_fraction=0.9, **given)  # type: ignore[arg-type]
    assert evaluation == ImagePipeline(size=(64, 48), crop="center", flip=0.0, center_fraction=0.9, **given)  # type: ignore[arg-type]
    assert imagenet_eval(64, crop="full", max_pixels=10**6).crop == "full"
    for name in ("flip", "vertical_flip", "rotate90", "scale", "ratio", "padding", "jitter", "augment"):
        with pytest.raises(TypeError, match=f"imagenet_eval has no setting {name}"):
            imagenet_eval(64, **{name: 0})  # type: ignore[arg-type]
    for random in ({"crop": "random"}, {"crop": "random_resized"}, {"interpolation": "random"}):
        with pytest.raises(ValueError, match=f"{next(iter(random))} must not be random in an evaluation"):
            imagenet_eval(64, **random)  # type: ignore[arg-type]


def test_the_evaluation_of_a_pipeline_agrees_with_it() -> None:
    same = {"mean": (0.5,) * 3, "std": (0.2,) * 3, "exif": "apply", "interpolation": "lanczos", "max_pixels": 10**7}
    for settings, evaluation in (
        ({}, {}),
        ({"mixup": 0.2, "erasing": 0.5, "auto_augment": "rand", "scale": (0.3, 1), "rotate90": 0.5}, {}),
        ({"center_fraction": 1.0}, {"center_fraction": 1.0}),
        ({"channels": 1, "mean": 0.5, "std": 0.2}, {"channels": 1, "mean": 0.5, "std": 0.2}),
        ({"depth": 16}, {"depth": 16}),
        ({"interpolation": "random"}, {"interpolation": "bicubic"}),
        ({"crop": "random", "padding": 4}, {"center_fraction": None}),
        ({"crop": "random", "shorter_side": (260, 1040)}, {"shorter_side": 520}),
        ({"crop": "random", "shorter_side": 64, "padding": 4}, {"shorter_side": 64}),
        (
            {"crop": "scale_jitter", "align": "top_left", "fill": 9},
            {"crop": "letterbox", "align": "top_left", "fill": 9},
        ),
        ({"crop": "letterbox", "fill": 9}, {"crop": "letterbox", "fill": 9}),
        ({"crop": "full"}, {"crop": "full"}),
        ({"crop": "ten", "flip": 0, "shorter_side": 70}, {"crop": "ten", "shorter_side": 70}),
        *[
            ({**settings, "crop": crop, "resize_first": True}, {**settings, "crop": crop, "resize_first": True})
            for crop, settings in (
                ("center", {"shorter_side": 70, "align": "center_down"}),
                ("five", {"center_fraction": 0.7}),
                ("full", {"center_fraction": 0.9, "align": "center_down"}),
                ("letterbox", {"center_fraction": 0.9, "fill": (9, 8, 7)}),
            )
        ],
    ):
        found = imagenet_train(64, **{**same, **settings}).evaluation()
        assert found == imagenet_eval(64, **{**same, **evaluation})
        assert not found.random
        assert found.evaluation() == found
    assert imagenet_train().evaluation() == imagenet_eval()
    assert imagenet_train(64).evaluation((80, 96), center_fraction=0.95) == imagenet_eval(
        (80, 96), center_fraction=0.95
    )
    grown = imagenet_train(64, crop="random", shorter_side=64).evaluation(80)
    assert (grown.size, grown.shorter_side) == ((80, 80), (80, 80))
    assert imagenet_train(64, crop="random", shorter_side=70).evaluation(center_fraction=0.9).shorter_side is None
    with pytest.raises(TypeError, match="evaluation has no setting crop_pct: pass center_fraction="):
        imagenet_train(64).evaluation(crop_pct=0.9)  # type: ignore[call-arg]


# ---- augmentations ----


@pytest.mark.parametrize(
    ("settings", "pixels", "mixes"),
    [
        ({}, False, False),
        ({"rand_ops": 3, "rand_magnitude": 1}, False, False),
        ({"color_jitter": (0.0, 0.0, 0.0, 0.0)}, False, False),
        ({"auto_augment": "rand"}, True, False),
        ({"auto_augment": "trivial"}, True, False),
        ({"auto_augment": "timm"}, True, False),
        ({"color_jitter": (0.0, 0.0, 0.1, 0.0)}, True, False),
        ({"color_jitter": (0.0, 0.0, 0.1, 0.0), "color_jitter_probability": 0.0}, False, False),
        ({"three_augment": True}, True, False),
        ({"grayscale": 0.1}, True, False),
        ({"blur": 0.1}, True, False),
        ({"solarize": 0.1}, True, False),
        ({"mixup": 0.2}, False, True),
        ({"cutmix": 1}, False, True),
        ({"erasing": 0.1}, False, False),
    ],
)
def test_properties_of_augmentations(settings: dict[str, Any], pixels: bool, mixes: bool) -> None:
    augment = Augmentations(**settings)
    assert (augment.changes_pixels, augment.mixes) == (pixels, mixes)
    assert augment.active is (pixels or mixes or "erasing" in settings)
    still = ImagePipeline(crop="center", flip=0.0, augment=augment)
    assert still.random is augment.active


def test_a_training_pipeline_accepts_augmentations_by_name() -> None:
    pipeline = imagenet_train(224, auto_augment="rand", mixup=0.2, flip=0.0)
    assert pipeline.augment == Augmentations(auto_augment="rand", mixup=0.2)
    assert (pipeline.flip, pipeline.size) == (0.0, (224, 224))
    assert imagenet_train(augment=Augmentations(erasing=0.1)).augment.erasing == 0.1
    with pytest.raises(ValueError, match=r"augment, or mixup, not both"):
        imagenet_train(augment=Augmentations(), mixup=0.2)


def test_an_evaluation_pipeline_rejects_augmentations() -> None:
    for field in dataclasses.fields(Augmentations):
        with pytest.raises(TypeError, match=field.name):
            imagenet_eval(224, **{field.name: field.default})
    assert imagenet_eval().augment == Augmentations()
