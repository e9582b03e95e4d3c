"""Rows without a sample are recognised by their labels alone: -1 or NaN, for all kinds of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from memory_source import MemorySource

from penstock.loaders import Boxes, create_loader, with_fields, with_labels
from penstock.pipelines import ImagePipeline, imagenet_eval, imagenet_train

COUNT = 10
DRAWS = np.random.default_rng(3)
IMAGES = DRAWS.integers(0, 256, (COUNT, 8, 8, 3), np.uint8), np.arange(COUNT)
LABELS: dict[str, Any] = {
    "class numbers": np.arange(COUNT) % 3,
    "names": ["dog", "cat"] * (COUNT // 2),
    "floats": DRAWS.uniform(1, 9, COUNT),
    "vectors": DRAWS.uniform(1, 9, (COUNT, 3)),
    "sets": [["a", "b", "c"][: 1 + number % 3] for number in range(COUNT)],
    "a dict": {
        "kind": ["dog", "cat"] * (COUNT // 2),
        "age": DRAWS.uniform(1, 9, COUNT),
        "tags": [["a"], ["b"]] * (COUNT // 2),
    },
}


def served(source: Any, world_size: int, **options: Any) -> list[Any]:
    """Return the batches of all ranks."""
    defaults: dict[str, Any] = {"pipeline": imagenet_eval(8), "batch_size": 4, "workers": 0, "world_size": world_size}
    found = []
    for rank in range(world_size):
        with create_loader(source, rank=rank, **{**defaults, **options}) as loader:
            found += list(loader)
    return found


def parts_of(labels: Any) -> dict[str, torch.Tensor]:
    return labels if isinstance(labels, dict) else {"": labels}


def is_known(labels: torch.Tensor) -> torch.Tensor:
    return ~labels.isnan() if labels.is_floating_point() else labels >= 0


def metric(batches: list[Any]) -> dict[str, tuple[int, float]]:
    """Return number and sum of squares of the known labels, by name."""
    totals: dict[str, tuple[int, float]] = {}
    for _, labels in batches:
        for name, part in parts_of(labels).items():
            known, (count, total) = part[is_known(part)], totals.get(name, (0, 0.0))
            totals[name] = count + len(known), total + float(known.double().square().sum())
    return {name: (count, round(total, 6)) for name, (count, total) in totals.items()}


@pytest.mark.parametrize("kind", LABELS)
def test_a_metric_over_three_ranks_equals_that_of_one_rank(kind: str) -> None:
    source = with_labels(IMAGES, LABELS[kind])
    alone, together = served(source, 1), served(source, 3)
    assert sum(len(images) for images, _ in alone) == COUNT
    assert sum(len(images) for images, _ in together) == 12
    assert metric(together) == metric(alone)
    padded = served(source, 1, pad=True)
    assert sum(len(images) for images, _ in padded) == 12
    assert metric(padded) == metric(alone)


def test_the_row_of_a_bad_sample_in_an_evaluation_has_no_label() -> None:
    source = MemorySource([*IMAGES[0][:4], b"\xff\xd8 broken", *IMAGES[0][5:]])
    batches = served(with_labels(source, LABELS["floats"]), 1, pad=True, on_bad_sample="replace", with_index=True)
    labels, index = (torch.cat([batch[place] for batch in batches]) for place in (1, 2))
    assert labels.isnan().tolist() == (index < 0).tolist() == [n == 4 or n >= COUNT for n in range(12)]


def test_fields_are_empty_in_padding_rows() -> None:
    corners = [np.array([[1, 1, 5, 5]], np.float32)] * COUNT
    source = with_fields(
        with_labels(IMAGES, LABELS["a dict"]),
        boxes=Boxes(corners, [[0]] * COUNT, names=["thing"]),
        mask=np.ones((COUNT, 8, 8), np.uint8),
        text=["x"] * COUNT,
    )
    for batch in served(source, 3, with_index=True):
        absent = batch["index"] < 0
        assert (batch["labels"]["kind"] == -1).tolist() == absent.tolist()
        assert batch["labels"]["age"].isnan().tolist() == absent.tolist()
        assert batch["labels"]["tags"].isnan().all(1).tolist() == absent.tolist()
        assert [len(boxes) == 0 for boxes in batch["boxes"]] == absent.tolist()
        assert (batch["mask"] == 255).flatten(1).all(1).tolist() == absent.tolist()
        assert [text == "" for text in batch["text"]] == absent.tolist()


@pytest.mark.parametrize("kind", ["floats", "vectors", "sets"])
def test_mixing_keeps_the_nan_of_padding_in_its_row(kind: str) -> None:
    pipeline = imagenet_train(8, mixup=1.0)
    source = with_labels((IMAGES[0][:9], IMAGES[1][:9]), LABELS[kind][:9])
    options: dict[str, Any] = {"pipeline": pipeline, "drop_last": False, "pad": True, "with_index": True}
    for _, labels, index in served(source, 1, **options):
        assert labels.isnan().reshape(4, -1).all(1).tolist() == (index < 0).tolist()
        assert not labels[index >= 0].isnan().any()


def test_targets_of_a_users_source_keep_their_type() -> None:
    class Typed(MemorySource):
        def targets(self, indices: Any) -> Any:
            ones = np.ones(len(indices), np.float16)
            return {"half": ones, "short": ones.astype(np.int16), "flag": ones.astype(bool)}

    pipeline = ImagePipeline(size=(8, 8), crop="full", flip=0.0)
    labels = served(Typed(list(IMAGES[0])), 1, pad=True, pipeline=pipeline, shuffle=False)[-1][1]
    assert {name: part.dtype for name, part in labels.items()} == {
        "half": torch.float16,
        "short": torch.int16,
        "flag": torch.bool,
    }
    assert labels["half"].isnan().tolist() == [False, False, True, True]
    assert labels["short"].tolist() == [1, 1, -1, -1]
    assert labels["flag"].tolist() == [True, True, False, False]
