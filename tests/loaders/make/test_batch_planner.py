"""BatchPlanner: the contents of a batch are determined once for all users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.loaders import create_loader, with_fields
from penstock.loaders.make import batch_planner
from penstock.pipelines import imagenet_train


@pytest.mark.parametrize("workers", [0, 3])
def test_augmentations_are_drawn_once_for_masks_and_for_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    for number in range(96):
        for kind in ("images", "masks"):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(np.full((9, 9), number, np.uint8)).save(tmp_path / kind / f"{number:02}.png")
    drawn, draw = [], batch_planner.plan_augmentations

    def count(*arguments: Any) -> Any:
        drawn.append(arguments[2].indices.tolist())
        return draw(*arguments)

    monkeypatch.setattr(batch_planner, "plan_augmentations", count)
    source = with_fields(tmp_path / "images", mask=str(tmp_path / "masks"))
    options = {"batch_size": 48, "workers": workers, "workers_are": "threads"}
    with create_loader(source, pipeline=imagenet_train(8, auto_augment="rand"), **options) as loader:
        served = [batch.index.tolist() for batch in loader.batches()]
    assert drawn[:2] == served  # the threads may already be in the next epoch
    assert len(set(map(tuple, drawn))) == len(drawn)
