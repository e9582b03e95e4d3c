"""A warning appears where training and evaluation normalise differently, and only there."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from penstock.loaders import create_loader
from penstock.loaders.make import normalising
from penstock.pipelines import imagenet_eval, imagenet_train, simclr
from penstock.pipelines.spec import ImagePipeline

DATA = (np.zeros((4, 12, 12, 3), np.uint8), np.arange(4))
OTHER = (np.zeros((4, 12, 12, 3), np.uint8), np.arange(4) % 2)
MEAN = (0.5, 0.5, 0.5)
TRAIN, HALF = imagenet_train(8), imagenet_train(8, mean=MEAN)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalising, "_loaders", type(normalising._loaders)())


def count_warnings(*pipelines: Any, **settings: Any) -> int:
    """Return the number of warnings from loaders that exist together; a pair of data and pipeline has its own data."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        loaders = []
        for given in pipelines:
            data, pipeline = given if isinstance(given, tuple) and isinstance(given[0], tuple) else (DATA, given)
            loaders.append(create_loader(data, pipeline=pipeline, batch_size=2, workers=0, **settings))
        for loader in loaders:
            loader.close()
    assert all("evaluation" in str(each.message) for each in seen)
    return len(seen)


@pytest.mark.parametrize(
    "evaluation",
    [
        imagenet_eval(8),
        imagenet_eval(8, mean=MEAN, std=(0.2, 0.2, 0.2)),
        imagenet_eval(8, mean=MEAN, interpolation="bicubic"),
        imagenet_eval(8, channels=1, mean=0.5, std=0.2),
    ],
)
def test_another_normalising_is_named_once_in_any_order(
    evaluation: ImagePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count_warnings(HALF, evaluation, HALF, evaluation) == 1
    monkeypatch.setattr(normalising._loaders, "has_found", False)
    assert count_warnings(evaluation, HALF) == 1


def test_the_warning_says_what_differs() -> None:
    with create_loader(DATA, pipeline=HALF, batch_size=2, workers=0) as train:  # noqa: SIM117
        with pytest.warns(UserWarning, match=r"mean=\(0.485, .*\) instead of \(0.5, 0.5, 0.5\) in the training.*eval"):
            create_loader(DATA, pipeline=imagenet_eval(8), batch_size=2, workers=0).close()
    assert train is not None


@pytest.mark.parametrize(
    ("pipelines", "settings"),
    [
        ([HALF, HALF.evaluation()], {}),
        ([TRAIN, imagenet_eval(8)], {}),
        ([imagenet_train(8, interpolation="random"), imagenet_eval(8, interpolation="bicubic")], {}),
        ([HALF, imagenet_eval(8)], {"dtype": torch.uint8}),  # served unnormalised
        ([HALF, imagenet_eval(8)], {"transform": lambda image: np.float32(image[0, 0])}),
        ([HALF, TRAIN], {}),  # two trainings
        ([imagenet_eval(8), HALF.evaluation()], {}),  # two evaluations
        ([HALF, TRAIN, imagenet_eval(8), HALF.evaluation()], {}),  # two models
        ([simclr(8), TRAIN, imagenet_eval(8)], {}),  # a pretraining
        ([(OTHER, HALF), (DATA, imagenet_eval(8))], {}),  # other classes
    ],
)
def test_loaders_that_agree_or_have_nothing_in_common_are_silent(pipelines: Any, settings: dict[str, Any]) -> None:
    assert count_warnings(*pipelines, **settings) == 0


def test_a_loader_that_is_gone_is_not_compared() -> None:
    assert count_warnings(HALF) == 0
    assert count_warnings(imagenet_eval(8)) == 0
