"""weights= by class: valid names of a class, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock.loaders import create_loader, with_labels
from penstock.pipelines import ImagePipeline

COUNT = 12


def drawn(names: list[Any], weights: Any, classes: list[str] | None = None) -> dict[str, int]:
    """Return how often each class occurs in an epoch; `names` are the labels of the samples, repeated."""
    labels = [names[number % len(names)] for number in range(COUNT)]
    images = np.zeros((COUNT, 8, 8, 3), np.uint8)
    source = with_labels((images, np.zeros(COUNT, np.int64)), labels, classes=classes)
    settings: dict[str, Any] = {"pipeline": ImagePipeline(size=(8, 8)), "batch_size": 20, "workers": 0}
    with create_loader(source, weights=weights, epoch_samples=400, dtype=torch.uint8, **settings) as loader:
        found = np.concatenate([labels.numpy() for _, labels in loader])
        return {name: int((found == number).sum()) for number, name in enumerate(loader.classes)}


def test_numpy_counts_can_be_weights() -> None:
    names, counts = np.unique(np.array([0, 0, 0, 1]), return_counts=True)
    found = drawn([0, 0, 0, 1], dict(zip(names, 1 / counts, strict=True)))
    assert 70 < found["0"] < 130  # for the weights 1 / 3 and 1
    assert sum(found.values()) == 400


@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_true_and_false_name_classes(kind: Any) -> None:
    assert drawn(["False", "True"], {kind(True): 1.0, kind(False): 0.0}) == {"False": 0, "True": 400}
    assert drawn(["False", "True"], {kind(True): 0.0, kind(False): 1.0}) == {"False": 400, "True": 0}


def test_numbers_name_classes_by_number() -> None:
    assert drawn(["cat", "dog"], {1: 1.0}) == {"cat": 0, "dog": 400}
    assert drawn(["cat", "dog"], {np.int64(1): 1.0}) == {"cat": 0, "dog": 400}


def test_a_number_that_is_the_name_of_another_class_is_refused() -> None:
    with pytest.raises(
        ValueError, match="key 1 of weights is ambiguous: the class named '1' has number 0; write class names"
    ):
        drawn(["1", "3"], {1: 1.0}, ["1", "3"])
    assert drawn(["1", "3"], {"1": 1.0}, ["1", "3"]) == {"1": 400, "3": 0}
    assert drawn(["0", "1"], {1: 1.0}, ["0", "1"]) == {"0": 0, "1": 400}
