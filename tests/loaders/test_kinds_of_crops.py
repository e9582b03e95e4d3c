"""Every crop, turn and channel count is served alike by all backends: the native library, Python, caches and DALI's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import write_folder

from penstock.loaders import create_loader
from penstock.loaders.loader import Batch
from penstock.pipelines.spec import ImagePipeline

NUM_PHOTOS, BATCH = 20, 5
PIPELINES = {
    "padded": ImagePipeline(size=(48, 80), crop="random", padding=20, fill=(9, 130, 250)),
    "shorter side, drawn": ImagePipeline(size=(24, 24), crop="random", shorter_side=(26, 50)),
    "shorter side": ImagePipeline(size=(24, 30), crop="center", shorter_side=32, flip=0),
    "scale jitter": ImagePipeline(size=(40, 56), crop="scale_jitter", jitter=(0.3, 2.0), align="top_left", fill=114),  # type: ignore[arg-type]
    "letterbox": ImagePipeline(size=(40, 40), crop="letterbox", fill=(114, 114, 114), flip=0),
    "turned": ImagePipeline(size=(32, 32), rotate90=0.75, vertical_flip=0.5),
    "ten": ImagePipeline(size=(16, 24), crop="ten", flip=0),
    "grey": ImagePipeline(size=(32, 32), channels=1, mean=0.4, std=0.2),  # type: ignore[arg-type]
    "grey, turned, padded": ImagePipeline(
        size=(60, 60),
        crop="random",
        padding=9,
        channels=1,
        mean=0,
        std=1,
        rotate90=1,
        fill=77,  # type: ignore[arg-type]
    ),
}
BACKENDS: dict[str, dict[str, Any]] = {
    "torch, threads": {"backend": "torch", "workers": 2},
    "torch, processes": {"backend": "torch", "workers": 1, "workers_are": "processes"},
    "hdf5": {"backend": "hdf5", "workers": 2},
    "hdf5, python": {"backend": "hdf5", "workers": 0, "decoder": "simplejpeg"},
    "dali": {"backend": "dali", "workers": 2},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), NUM_PHOTOS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "all.h5"


def as_bytes(batch: Batch) -> tuple[Any, ...]:
    views = batch.images if isinstance(batch.images, tuple) else (batch.images,)
    geometry = batch.windows, batch.places, batch.turns, batch.flips
    return batch.index.tolist(), [part.tolist() for part in geometry], [view.numpy().tobytes() for view in views]


def serve(source: Path, pipeline: ImagePipeline, **settings: Any) -> list[tuple[Any, ...]]:
    settings = {"dtype": torch.uint8, "seed": 3, "shuffle": False, "batch_size": BATCH, **settings}
    with create_loader(source, pipeline=pipeline, **settings) as loader:
        return [as_bytes(batch) for _ in range(2) for batch in loader.batches()]


@pytest.mark.parametrize("name", PIPELINES)
def test_all_backends_serve_the_same(photos: Path, cache: Path, name: str) -> None:
    expected = serve(photos, PIPELINES[name], decoder="simplejpeg", workers=0)
    for backend, settings in BACKENDS.items():
        more = {"cache": cache} if settings["backend"] == "hdf5" else {}
        assert serve(photos, PIPELINES[name], **settings, **more) == expected, backend
    assert (expected[:4] == expected[4:]) == (not PIPELINES[name].random)


def test_the_settings_are_seen_in_the_pixels(photos: Path) -> None:
    """Fill around a letterbox, one channel, ten different crops, floats of one mean and std."""

    def first(name: str, **settings: Any) -> Batch:
        with create_loader(photos, pipeline=PIPELINES[name], batch_size=BATCH, workers=0, **settings) as loader:
            return next(loader.batches())

    boxed = first("letterbox", dtype=torch.uint8)
    for image, (x, y, w, h) in zip(boxed.images, boxed.places.tolist(), strict=True):
        assert max(w, h) == 40
        outside = torch.ones(40, 40, dtype=torch.bool)
        outside[y : y + h, x : x + w] = False
        assert (image[:, outside] == 114).all()
        assert (image[:, ~outside] != 114).any()
    levels, floats = first("grey", dtype=torch.uint8).images, first("grey").images
    assert levels.shape == (BATCH, 1, 32, 32)
    assert torch.allclose(floats, (levels / 255 - 0.4) / 0.2, atol=1e-6)
    crops = first("ten", dtype=torch.uint8).images
    assert torch.stack(crops, 1).shape == (BATCH, 10, 3, 16, 24)
    assert torch.equal(crops[5], crops[1].flip(3))  # upper left of the mirrored image
    assert len(np.unique(first("turned").turns)) > 1


def test_a_cache_is_refused_for_16_bits(photos: Path, cache: Path) -> None:
    deep = ImagePipeline(size=(16, 16), depth=16)
    for settings in ({"backend": "hdf5", "cache": cache}, {"backend": "dali", "cache": cache}):
        with pytest.raises(ValueError, match="depth=16 needs the image files"):
            create_loader(photos, pipeline=deep, batch_size=4, **settings)
    with create_loader(photos, pipeline=deep, batch_size=4, dtype=torch.uint16, shuffle=False, workers=2) as loader:
        images = next(loader.batches()).images
    assert images.dtype == torch.uint16
    assert (images.to(torch.int32) > 255).any()
