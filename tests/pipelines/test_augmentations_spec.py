"""Settings of the augmentations: impossible ones raise at construction and say which."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from penstock.pipelines.spec import Augmentations, ImagePipeline, imagenet_eval, imagenet_train

NAN, INF = float("nan"), float("inf")
IMPOSSIBLE: dict[str, list[Any]] = {
    "auto_augment": ["", "randaugment", True, 9],
    "rand_ops": [0, -1, 17, 2.0, True, None],
    "rand_magnitude": [-1, 31, 9.0, True, None],
    "color_jitter": [
        0.4,
        (0.4, 0.4, 0.4),
        [0.4, 0.4, 0.4, 0.1],
        (-0.1, 0, 0, 0),
        (0, 0, 0, 0.51),
        (NAN, 0, 0, 0),
        (0, INF, 0, 0),
        ("0.4", 0, 0, 0),
        (True, 0, 0, 0),
    ],
    "erasing": [-0.1, 1.1, NAN, None, "0.5", True],
    "mixup": [-0.1, NAN, INF, None, True, "0.2"],
    "cutmix": [-0.1, NAN, INF, None, True, "1"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_impossible_settings_raise_and_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Augmentations(**{name: value})
    with pytest.raises(ValueError, match=name):
        imagenet_train(**{name: value})


def test_every_setting_is_checked() -> None:
    assert set(IMPOSSIBLE) == {field.name for field in dataclasses.fields(Augmentations)}


def test_the_limits_themselves_are_legal() -> None:
    for magnitude, ops in ((0, 1), (30, 16)):
        edge = Augmentations(rand_magnitude=magnitude, rand_ops=ops, color_jitter=(3, 3, 3, 0.5), erasing=1, mixup=1e-3)
        assert (edge.rand_magnitude, edge.erasing) == (magnitude, 1)


def test_frozen_hashable_and_picklable() -> None:
    augment = Augmentations(auto_augment="trivial", color_jitter=(0.4, 0.4, 0.4, 0.1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        augment.mixup = 1.0  # type: ignore[misc]
    pipeline = ImagePipeline(augment=augment)
    assert {pipeline: 1}[pickle.loads(pickle.dumps(pipeline))] == 1
    assert pipeline != ImagePipeline()


@pytest.mark.parametrize(
    ("settings", "pixels", "mixes"),
    [
        ({}, False, False),
        ({"rand_ops": 3, "rand_magnitude": 1}, False, False),
        ({"color_jitter": (0.0, 0.0, 0.0, 0.0)}, False, False),
        ({"auto_augment": "rand"}, True, False),
        ({"auto_augment": "trivial"}, True, False),
        ({"color_jitter": (0.0, 0.0, 0.1, 0.0)}, True, False),
        ({"mixup": 0.2}, False, True),
        ({"cutmix": 1}, False, True),
        ({"erasing": 0.1}, False, False),
    ],
)
def test_it_tells_what_is_asked_for(settings: dict[str, Any], pixels: bool, mixes: bool) -> None:
    augment = Augmentations(**settings)
    assert (augment.changes_pixels, augment.mixes) == (pixels, mixes)
    assert augment.active is (pixels or mixes or "erasing" in settings)
    still = ImagePipeline(crop="center", flip=0.0, augment=augment)
    assert still.random is augment.active


def test_a_training_pipeline_takes_them_by_name() -> None:
    pipeline = imagenet_train(224, auto_augment="rand", mixup=0.2, flip=0.0)
    assert pipeline.augment == Augmentations(auto_augment="rand", mixup=0.2)
    assert (pipeline.flip, pipeline.size) == (0.0, (224, 224))
    assert imagenet_train(augment=Augmentations(erasing=0.1)).augment.erasing == 0.1
    with pytest.raises(ValueError, match=r"augment, or mixup, not both"):
        imagenet_train(augment=Augmentations(), mixup=0.2)


def test_an_evaluation_pipeline_refuses_them() -> None:
    for field in dataclasses.fields(Augmentations):
        with pytest.raises(TypeError, match=field.name):
            imagenet_eval(224, **{field.name: field.default})
    assert imagenet_eval().augment == Augmentations()
