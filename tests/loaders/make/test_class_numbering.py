"""A warning appears where training and evaluation number the same classes differently, and only there."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock.loaders import Boxes, create_loader, open_source, with_fields, with_labels
from penstock.loaders.make import class_numbering
from penstock.pipelines import imagenet_eval, imagenet_train, simclr

TRAIN, EVAL = imagenet_train(8), imagenet_eval(8)
IMAGES = np.zeros((12, 12, 12, 3), np.uint8)
IMAGES_OF_ONE = (IMAGES, np.zeros(12, np.int64))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_numbering, "_loaders", type(class_numbering._loaders)())


def data_of(classes: Sequence[Any]) -> Any:
    """Return images of these classes, which are numbered in sorted order."""
    return IMAGES, [classes[number % len(classes)] for number in range(len(IMAGES))]


def warnings_of(*loaders: tuple[Any, Any], **settings: Any) -> list[str]:
    """Return the warnings from loaders that exist together, each given by classes or data and a pipeline."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = [
            create_loader(
                data_of(data) if isinstance(data, list) else data, pipeline=view, batch_size=2, workers=0, **settings
            )
            for data, view in loaders
        ]
        for loader in made:
            loader.close()
    return [str(each.message) for each in seen]


def test_a_class_that_moved_is_named_once_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    three, two = ["cat", "cow", "dog"], ["cat", "dog"]
    text = (
        "class 'dog' has number 1 in the evaluation and 2 in the training, because their data has different classes: "
        "pass the training loader's classes to the evaluation as classes="
    )
    assert warnings_of((three, TRAIN), (two, EVAL), (three, TRAIN), (two, EVAL)) == [text]
    monkeypatch.setattr(class_numbering._loaders, "has_found", False)
    assert warnings_of((two, EVAL), (three, TRAIN)) == [text]
    monkeypatch.setattr(class_numbering._loaders, "has_found", False)
    assert len(warnings_of((two, TRAIN), (three, EVAL))) == 1  # one more class
    monkeypatch.setattr(class_numbering._loaders, "has_found", False)
    assert len(warnings_of((three, TRAIN), (["dog"], EVAL))) == 1


def test_listed_classes_cure_it() -> None:
    with create_loader(data_of(["cat", "cow", "dog"]), pipeline=TRAIN, batch_size=2, workers=0) as train:
        assert warnings_of((["cat", "dog"], EVAL), classes=train.classes) == []


@pytest.mark.parametrize(
    "loaders",
    [
        [(["a", "b", "c"], TRAIN), (["a", "b", "c"], EVAL)],
        [(["a", "b", "c"], TRAIN), (["a", "b"], EVAL)],  # the same numbers
        [(["a", "b"], TRAIN), (["a", "b", "c"], EVAL)],
        [(list(range(10)), TRAIN), (list(range(8)), EVAL)],  # class numbers
        [(["a", "b"], TRAIN), (["b", "x", "y"], EVAL)],  # other data
        [(["a", "b", "c"], TRAIN), (["b", "c"], TRAIN)],  # two trainings
        [(["a", "b", "c"], EVAL), (["b", "c"], EVAL)],  # two evaluations
        [(["a", "b", "c"], TRAIN), (["a", "b", "c"], EVAL), (["b", "c"], TRAIN), (["b", "c"], EVAL)],  # two models
        [(["a", "b", "c"], simclr(8)), (["b", "c"], EVAL)],  # a pretraining
        [(["a", "b", "c"], TRAIN), (list(range(3)), EVAL)],
        [(["a", "b", "c"], TRAIN), ((IMAGES, np.linspace(0, 1, 12)), EVAL)],
    ],
)
def test_loaders_that_agree_or_have_nothing_in_common_are_silent(loaders: Any) -> None:
    assert warnings_of(*loaders) == []


def test_a_part_of_the_data_and_a_loader_that_is_gone_are_silent() -> None:
    source = open_source(data_of(["a", "b", "c"]))
    few = open_source(data_of(["a", "b", "c"]), subset=[1, 2, 4])
    assert warnings_of((source, TRAIN), (few, EVAL)) == []
    assert warnings_of((["b", "c"], EVAL)) == []


def test_named_labels_are_compared_by_name() -> None:
    def labelled(kinds: list[str], name: str = "kind") -> Any:
        numbers = np.arange(12) % len(kinds)
        return with_labels(IMAGES_OF_ONE, {name: [kinds[n] for n in numbers], "size": numbers / 2})

    train = (labelled(["cat", "cow", "dog"]), TRAIN)
    assert warnings_of(train, (labelled(["cat", "dog"], "other"), EVAL)) == []
    (text,) = warnings_of(train, (labelled(["cat", "dog"]), EVAL))
    assert text.startswith("kind: class 'dog' has number 1 in the evaluation and 2 in the training")


def test_classes_of_boxes_are_compared_too() -> None:
    def boxed(kinds: list[str], **settings: Any) -> Any:
        corners, classes = [[(0, 0, 9, 9)]] * 12, [[kinds[number % len(kinds)]] for number in range(12)]
        return with_fields(IMAGES_OF_ONE, boxes=Boxes(corners, classes, **settings))

    train = (boxed(["cat", "cow", "dog"]), TRAIN)
    for val in (boxed(["cat", "dog"], names=["cat", "cow", "dog"]), boxed(["cat", "cow"]), boxed(["bird", "fish"])):
        assert warnings_of(train, (val, EVAL)) == []
    (text,) = warnings_of(train, (boxed(["cat", "dog"]), EVAL))
    assert text.startswith("boxes: class 'dog' has number 1 in the evaluation and 2 in the training")
    assert text.endswith("give both the same names=, or the same categories in their COCO files")


def test_another_first_class_of_boxes_is_named() -> None:
    corners, classes = [[(0, 0, 9, 9)]] * 12, [["cat"]] * 12
    train, val = (with_fields(IMAGES_OF_ONE, boxes=Boxes(corners, classes, first_class=first)) for first in (1, 0))
    (text,) = warnings_of((train, TRAIN), (val, EVAL))
    assert "'cat' has number 0 in the evaluation and 1 in the training, because first_class differs: give both" in text


def test_random_classes_give_the_warnings_of_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    found = []
    for _ in range(60):
        monkeypatch.setattr(class_numbering, "_loaders", type(class_numbering._loaders)())
        train, val = (sorted(rng.sample("abcdef", rng.randrange(1, 7))) for _ in range(2))
        shared = set(train) & set(val)
        is_moved = 2 * len(shared) >= len(val) and any(train.index(name) != val.index(name) for name in shared)
        pair = [(train, TRAIN), (val, EVAL)]
        rng.shuffle(pair)
        assert len(warnings_of(*pair)) == is_moved, (train, val)
        found.append(is_moved)
    assert 10 < sum(found) < 50
