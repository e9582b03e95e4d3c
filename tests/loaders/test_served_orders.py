"""Orders other than the plain shuffle, served: the same stream by every engine, on every rank, after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import write_folder
from served_rows import Row, serve

from penstock.loaders import Blocks, LoaderError, create_loader
from penstock.loaders.loader import Loader
from penstock.pipelines import imagenet_train

NUM_PHOTOS = 40
ORDERS: dict[str, dict[str, Any]] = {
    "blocks": {"shuffle": Blocks(samples=4, group=8)},
    "weights": {"weights": np.arange(NUM_PHOTOS) % 5 + 0.5, "epoch_samples": 50},
}
ENGINES: dict[str, dict[str, Any]] = {
    "no worker": {"workers": 0},
    "Python": {"workers": 0, "decoder": "simplejpeg"},
    "2 threads": {"workers": 2, "workers_are": "threads"},
    "2 processes": {"workers": 2, "workers_are": "processes"},
    "hdf5": {"backend": "hdf5", "workers": 2},
    "dali": {"backend": "dali", "workers": 2, "readers": 2},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), NUM_PHOTOS)


def open_loader(photos: Path, order: str, **settings: Any) -> Loader:
    if settings.get("backend") == "hdf5":
        settings["cache"] = photos.with_suffix(".h5")
    settings = {"batch_size": 8, "seed": 3, "workers": 0, **ORDERS[order], **settings}
    return create_loader(photos, pipeline=imagenet_train(24), dtype=torch.uint8, with_index=True, **settings)


@pytest.fixture(scope="module")
def expected(photos: Path) -> dict[str, list[Row]]:
    found = {}
    for order in ORDERS:
        with open_loader(photos, order) as loader:
            found[order] = serve(loader) + serve(loader)
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_engine_serves_it(photos: Path, expected: dict[str, list[Row]], order: str, engine: str) -> None:
    pixels = engine != "dali"  # which resizes with sums of its own
    with open_loader(photos, order, **ENGINES[engine]) as loader:
        served = serve(loader, pixels=pixels) + serve(loader, pixels=pixels)
    assert served == [row if pixels else (*row[:2], 0) for row in expected[order]]


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_share_a_step(photos: Path, expected: dict[str, list[Row]], order: str) -> None:
    parts = []
    for rank in range(2):
        with open_loader(photos, order, batch_size=4, rank=rank, world_size=2) as loader:
            parts.append(serve(loader))
    steps = [part[first : first + 4] for first in range(0, len(parts[0]), 4) for part in parts]
    joined = [row for step in steps for row in step]
    assert joined == expected[order][: len(joined)]
    assert len(joined) >= NUM_PHOTOS


@pytest.mark.parametrize("order", ORDERS)
def test_a_resume_goes_on_exactly(photos: Path, expected: dict[str, list[Row]], order: str) -> None:
    with open_loader(photos, order) as loader:
        before = serve(loader, 3)
        state = loader.state_dict()
    with open_loader(photos, order, workers=2) as loader:
        loader.load_state_dict(state)
        after = serve(loader) + serve(loader)
    assert before + after == expected[order]


def test_a_state_of_another_order_is_refused(photos: Path) -> None:
    with open_loader(photos, "blocks") as blocks, open_loader(photos, "weights") as weights:
        with pytest.raises(LoaderError, match="sampler='blocks-2 of 4 in groups of 8 over 4 lanes'"):
            weights.load_state_dict(blocks.state_dict())
        old = {**blocks.state_dict(), "sampler": "blocks-1 of 4 in groups of 8"}
        with pytest.raises(
            LoaderError, match=r"E-STATE.*sampler='blocks-1 of 4 in groups of 8', this loader 'blocks-2"
        ):
            blocks.load_state_dict(old)
        with pytest.raises(LoaderError, match="weighted-1"):
            blocks.load_state_dict(weights.state_dict())


def test_a_sample_that_comes_twice_has_two_crops(expected: dict[str, list[Row]]) -> None:
    epoch = expected["weights"][:48]
    indices, rows = [row[0] for row in epoch], set(epoch)
    assert len(set(indices)) < len(indices) - 5  # many come again
    assert len(rows) == len(epoch)


def test_augmentations_of_a_sample_that_comes_twice_differ(photos: Path) -> None:
    only_one = {"weights": [1.0] + [0.0] * (NUM_PHOTOS - 1), "epoch_samples": 8}
    pipeline = imagenet_train(24, scale=(1, 1), ratio=(1, 1), flip=0.0, color_jitter=(0.4, 0.4, 0.4, 0.1))
    with create_loader(photos, pipeline=pipeline, batch_size=8, workers=0, **only_one) as loader:
        images = next(iter(loader))[0]
    assert len({image.numpy().tobytes() for image in images.permute(0, 2, 3, 1)}) == 8
