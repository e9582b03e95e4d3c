"""with_labels for labels of any kind: on all engines, ranks, parts and caches, and after a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.loaders import concat, create_loader, open_source, split, with_labels
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_eval, imagenet_train

NUM_PHOTOS = 31
ENGINES: dict[str, dict[str, Any]] = {
    "threads": {"workers": 2, "workers_are": "threads"},
    "processes": {"workers": 2, "workers_are": "processes", "decoder": "simplejpeg"},
    "hdf5": {"backend": "hdf5", "workers": 0},
    "dali": {"backend": "dali", "workers": 1},
}
NUMBERS = np.arange(NUM_PHOTOS)
TARGETS: dict[str, Any] = {
    "regression": NUMBERS / 8,
    "vectors": np.stack([NUMBERS, -NUMBERS], 1),
    "sets": [["odd"] * (number % 2) + ["third"] * (number % 3 == 0) for number in range(NUM_PHOTOS)],
    "named": {"half": NUMBERS / 2, "class": (NUMBERS % 4).tolist(), "box": np.ones((NUM_PHOTOS, 4)) * NUMBERS[:, None]},
}


def expected(kind: str, index: int) -> Any:
    return {
        "regression": index / 8,
        "vectors": [index, -index],
        "sets": [index % 2, index % 3 == 0],
        "named": {"half": index / 2, "class": index % 4, "box": [index] * 4},
    }[kind]


def open_loader(source: Any, tmp_path: Path, **settings: Any) -> Loader:
    if settings.get("backend") == "hdf5":
        settings["cache"] = tmp_path / "images.h5"
    defaults = {"pipeline": imagenet_train(24), "batch_size": 8, "dtype": torch.uint8, "seed": 3, "workers": 0}
    return create_loader(source, **{**defaults, **settings})


def check(kind: str, loader: Loader) -> list[int]:
    """Check the labels of the rest of an epoch; return its samples."""
    seen: list[int] = []
    for batch in loader.batches():
        for row, index in enumerate(batch.index.tolist()):
            wanted = expected(kind, max(index, 0))
            named = batch.labels if kind == "named" else {"": batch.labels}
            for name, labels in named.items():
                assert labels.dtype == (torch.int64 if name == "class" else torch.float32)
                label = torch.as_tensor(wanted[name] if kind == "named" else wanted, dtype=torch.float64)
                absent = torch.full_like(label, -1 if name == "class" else float("nan"))
                label = label if index >= 0 else absent
                torch.testing.assert_close(labels[row].double(), label, rtol=0, atol=0, equal_nan=True)
            seen += [index] * (index >= 0)
    return seen


@pytest.mark.parametrize(
    ("engine", "kind"), [*(("threads", kind) for kind in TARGETS), *((e, "named") for e in ENGINES if e != "threads")]
)
def test_each_engine_serves_labels_of_each_kind(photos: Path, tmp_path: Path, engine: str, kind: str) -> None:
    source = with_labels(photos, TARGETS[kind])
    served = []
    for rank in range(2):
        with open_loader(source, tmp_path, rank=rank, world_size=2, drop_last=False, **ENGINES[engine]) as loader:
            batches = loader.batches()
            served += next(batches).index.tolist()
            with open_loader(source, tmp_path, rank=rank, world_size=2, drop_last=False) as resumed:
                resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                served += check(kind, resumed)
    assert sorted(served) == list(range(NUM_PHOTOS))


def number_of(kind: str, labels: Any) -> list[int]:
    """Return the numbers of the photos with these labels; for sets, only whether they are odd."""
    if kind == "named":
        return [round(value * 2) for value in labels["half"].tolist()]
    return [
        round(value * (8 if kind == "regression" else 1)) for value in labels.reshape(len(labels), -1)[:, 0].tolist()
    ]


@pytest.mark.parametrize("kind", TARGETS)
def test_parts_and_joined_data_keep_their_labels(photos: Path, tmp_path: Path, kind: str) -> None:
    parts = split(with_labels(photos, TARGETS[kind]), 0.6, seed=1)
    joined = np.concatenate([part.indices for part in parts]).astype(int)
    for source, numbers in (*((part, part.indices) for part in parts), (concat(parts), joined)):
        seen = []
        with open_loader(source, tmp_path, drop_last=False) as loader:
            for batch in loader.batches():
                inner = numbers[batch.index]
                assert number_of(kind, batch.labels) == (inner % 2 if kind == "sets" else inner).tolist()
                seen += inner.tolist()
        assert sorted(seen) == sorted(numbers.tolist())


def test_class_numbers_and_names_replace_those_of_the_folder(photos: Path, tmp_path: Path) -> None:
    names = ["even" if number % 2 == 0 else "odd" for number in range(NUM_PHOTOS)]
    for labels, options in ((NUMBERS % 2, {"classes": ["even", "odd"]}), (names, {})):
        with open_loader(with_labels(photos, labels, **options), tmp_path) as loader:
            assert loader.classes == ("even", "odd")
            assert all((batch.labels.numpy() == batch.index % 2).all() for batch in loader.batches())
            assert loader.dataset.targets == (NUMBERS % 2).tolist()


def test_labels_can_be_a_function_of_the_name(photos: Path, tmp_path: Path) -> None:
    source = with_labels(photos, lambda name: float(Path(name).stem))
    with open_loader(source, tmp_path, pipeline=imagenet_eval(24), drop_last=False) as loader:
        served = torch.cat([labels for _, labels in loader]).tolist()
        assert served == [float(Path(source.path(index).decode()).stem) for index in range(NUM_PHOTOS)]
        assert loader.dataset.targets == served
    with pytest.raises(ValueError, match=r"labels raised KeyError for sample 0 \('class0/0000.jpg'\)"):
        with_labels(photos, lambda name: {}[name])


@pytest.mark.parametrize("kind", TARGETS)
def test_arrays_accept_the_same_labels(tmp_path: Path, kind: str) -> None:
    images = np.zeros((NUM_PHOTOS, 24, 24, 3), np.uint8)
    with open_loader((images, TARGETS[kind]), tmp_path, drop_last=False) as loader:
        assert sorted(check(kind, loader)) == list(range(NUM_PHOTOS))
    assert isinstance(open_source((images, NUMBERS)), ArraySource)


def test_mixup_mixes_floats_with_the_weights_of_their_images(tmp_path: Path) -> None:
    """The label of each image is its grey level: both are mixed alike."""
    levels = np.arange(0, 160, 10)
    images = np.repeat(levels.astype(np.uint8), 24 * 24 * 3).reshape(-1, 24, 24, 3)
    pipeline = imagenet_train(24, mixup=1.0, mean=(0, 0, 0), std=(1, 1, 1))
    with open_loader((images, levels / 255), tmp_path, pipeline=pipeline, dtype=torch.float32) as loader:
        for batch in loader.batches():
            torch.testing.assert_close(batch.labels, batch.images[:, 0, 0, 0], atol=1e-6, rtol=0)
            assert (batch.labels.numpy() != np.float32(levels[batch.index] / 255)).any()
    with pytest.raises(ValueError, match="need one label per sample: class numbers or floats"):
        open_loader((images, {"a": levels}), tmp_path, pipeline=pipeline, dtype=torch.float32)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (NUMBERS[:-1], r"labels must be one per sample \(31\), got 30"),
        (NUMBERS - 1, "sample 0: label -1 is negative"),
        (np.where(NUMBERS == 5, np.nan, 1.0), "sample 5: no label: give every sample a label"),
        ([[1.0]] * 30 + [[1.0, 2.0]], "sample 30: a vector of 2 numbers, but the first one has 1"),
        (np.zeros((NUM_PHOTOS, 2, 2)), r"of shape \[n\] or \[n, k\]"),
        ({"a": NUMBERS, "b": NUMBERS[:3]}, r"labels\['b'\]: labels must be one per sample"),
        ({}, "must have names"),
        ({0: NUMBERS}, "must have names that are strings"),
        (3, "labels must be one per sample .* got 3"),
    ],
)
def test_invalid_labels_are_refused(photos: Path, labels: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        with_labels(photos, labels)


def test_options_by_class_are_refused_without_classes(photos: Path, tmp_path: Path) -> None:
    source = with_labels(photos, NUMBERS / 2)
    with pytest.raises(ValueError, match="weights='balanced' needs labels that are class numbers"):
        open_loader(source, tmp_path, weights="balanced")
    with pytest.raises(ValueError, match="max_per_class needs labels that are class numbers"):
        open_source(source, max_per_class=2)
    with pytest.raises(ValueError, match="labels of joined sources must be of one kind"):
        concat([source, photos])
    with pytest.raises(ValueError, match="'red' is not one of classes"):
        with_labels(photos, [["red"]] * NUM_PHOTOS, classes=["blue"])


def test_states_distinguish_labels(photos: Path, tmp_path: Path) -> None:
    prints = {with_labels(photos, labels).fingerprint for labels in (NUMBERS, NUMBERS / 1, NUMBERS / 2, {"a": NUMBERS})}
    assert len(prints) == 4
