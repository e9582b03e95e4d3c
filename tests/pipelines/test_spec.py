"""Pipeline settings: impossible ones raise at construction and say which."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from penstock.pipelines.spec import (
    DEFAULT_MAX_PIXELS,
    IMAGENET_MEAN,
    IMAGENET_STD,
    ImagePipeline,
    imagenet_eval,
    imagenet_train,
)

NAN, INF = float("nan"), float("inf")
IMPOSSIBLE = {
    "size": [(0, 1), (1, 16385), (224,), (3, 4, 5), (-1, 5), (224.5, 224), (224.0, 224.0), (NAN, 1)],
    "crop": ["", "centre", "random", None],
    "scale": [(0, 1), (0.5, 0.4), (0.5, 1.1), (NAN, 1), (0.1, NAN), (0.5,), (0.1, 0.5, 1.0), (-0.1, 1)],
    "ratio": [(0, 1), (2, 1), (1, INF), (NAN, 1), (1, NAN), (1,), (0.5, 1, 2), (-1, 1)],
    "center_fraction": [0, -0.1, 1.01, NAN],
    "flip": [-0.1, 1.1, NAN],
    "mean": [(0.5, 0.5), (0.5,) * 4, (0.5, 0.5, NAN), (INF, 0.5, 0.5)],
    "std": [(0.5, 0.5), (0.5, 0.5, 0), (0.5, 0.5, -1), (0.5, 0.5, NAN), (0.5, 0.5, INF)],
    "exif": ["", "yes", True],
    "resample": ["", "cv2", None],
    "max_pixels": [0, -5],
    "augment": [None, "rand", {}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_impossible_settings_raise_and_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        ImagePipeline(**{name: value})


def test_every_setting_is_checked() -> None:
    assert set(IMPOSSIBLE) == {field.name for field in dataclasses.fields(ImagePipeline)}


def test_the_limits_themselves_are_legal() -> None:
    edge = ImagePipeline(
        size=(1, 16384), scale=(1, 1), ratio=(1, 1), center_fraction=1, flip=1, std=(1e-9, 1, 1), max_pixels=1
    )
    assert edge.size == (1, 16384)
    assert ImagePipeline(flip=0).flip == 0


def test_frozen_hashable_keyword_only_and_picklable() -> None:
    pipeline = ImagePipeline()
    with pytest.raises(dataclasses.FrozenInstanceError):
        pipeline.flip = 0.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        ImagePipeline((224, 224))  # type: ignore[misc]
    assert {pipeline: 1}[ImagePipeline()] == 1
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline
    assert ImagePipeline(flip=0.25) != pipeline


def test_defaults_are_torchvisions() -> None:
    pipeline = ImagePipeline()
    assert (pipeline.scale, pipeline.ratio, pipeline.flip) == ((0.08, 1.0), (3 / 4, 4 / 3), 0.5)
    assert (pipeline.mean, pipeline.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert (pipeline.exif, pipeline.max_pixels) == ("ignore", DEFAULT_MAX_PIXELS)


@pytest.mark.parametrize(
    ("settings", "random"),
    [
        ({}, True),
        ({"flip": 0}, True),
        ({"crop": "center", "flip": 0}, False),
        ({"crop": "center"}, True),
        ({"crop": "full", "flip": 0}, False),
    ],
)
def test_random_tells_whether_anything_is_drawn(settings: dict[str, object], random: bool) -> None:
    assert ImagePipeline(**settings).random is random


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
