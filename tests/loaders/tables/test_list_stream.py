"""Lists and tables serve, on every backend, the stream of the class folder of the same files."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import write_folder

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.loader import Loader
from penstock.loaders.open_source import open_source
from penstock.loaders.sources.image_folder import ImageFolder
from penstock.pipelines import imagenet_eval, imagenet_train

NUM_PHOTOS, SIZE = 38, 32
BACKENDS: dict[str, dict[str, Any]] = {
    "torch, 2 threads": {"backend": "torch", "workers": 2, "workers_are": "threads"},
    "torch, 2 processes": {"backend": "torch", "workers": 2, "workers_are": "processes"},
    "torch, in Python": {"backend": "torch", "workers": 0, "decoder": "simplejpeg"},
    "hdf5": {"backend": "hdf5", "workers": 0},
    "dali": {"backend": "dali", "workers": 0},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), NUM_PHOTOS)


@pytest.fixture(scope="module")
def table(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos in an order of their own."""
    path = tmp_path_factory.mktemp("table") / "train.csv"
    rows = sorted(photos.rglob("*.jpg"))
    random.Random(3).shuffle(rows)
    path.write_text("path,label\n" + "".join(f"{row},{row.parent.name}\n" for row in rows))
    return path


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    options = BACKENDS[request.param]
    return {**options, "cache": tmp_path / "cache.h5"} if options["backend"] == "hdf5" else options


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(SIZE), "batch_size": 12, "dtype": torch.uint8, "seed": 7}
    return create_loader(source, **{**defaults, **settings})


def serve(loader: Loader, batches: int | None = None) -> list[tuple[int, int, int]]:
    """(index, label, CRC of the pixels) of each sample."""
    served = []
    for batch in itertools.islice(loader.batches(), batches):
        pixels = batch.images.permute(0, 2, 3, 1).contiguous().numpy()
        crcs = (zlib.crc32(image.tobytes()) for image in pixels)
        served += [row for row in zip(batch.index.tolist(), batch.labels.tolist(), crcs, strict=True) if row[0] >= 0]
    return served


def test_a_list_in_the_folders_order_serves_its_stream(photos: Path, backend: dict[str, Any], tmp_path: Path) -> None:
    folder = ImageFolder(photos)
    rows = [(folder.path(n), int(folder.labels(np.array([n]))[0])) for n in range(len(folder))]
    of_folder = {**backend, "cache": tmp_path / "folder.h5"} if "cache" in backend else backend
    with open_loader(photos, **of_folder) as loader:
        expected = serve(loader)
    assert len(expected) == NUM_PHOTOS // 12 * 12
    with open_loader(rows, **backend) as loader:
        assert serve(loader, 2) == expected[:24]
        state = json.loads(json.dumps(loader.state_dict()))
    with open_loader(rows, workers=0) as loader:
        loader.load_state_dict(state)
        rest = serve(loader)
    assert [row[:2] for row in rest] == [row[:2] for row in expected[24:]]
    assert backend["backend"] == "dali" or rest == expected[24:]
    ranks = []
    for rank in range(2):
        with open_loader(rows, batch_size=6, rank=rank, world_size=2, **backend) as loader:
            ranks.append(serve(loader))
    steps = [ranks[rank][step : step + 6] for step in range(0, len(ranks[0]), 6) for rank in range(2)]
    assert list(itertools.chain.from_iterable(steps)) == expected


def test_a_table_serves_the_folders_samples_in_its_own_order(
    photos: Path, table: Path, backend: dict[str, Any], tmp_path: Path
) -> None:
    folder, rows = ImageFolder(photos), open_source(table)
    of_folder = {**backend, "cache": tmp_path / "folder.h5"} if "cache" in backend else backend
    settings = {"pipeline": imagenet_eval(SIZE)}
    with open_loader(photos, **settings, **of_folder) as loader:
        by_path = {folder.path(index): rest for index, *rest in serve(loader)}
    with open_loader(table, **settings, **backend) as loader:
        served = serve(loader)
    assert [index for index, *_ in served] == list(range(NUM_PHOTOS))
    assert {rows.path(index): rest for index, *rest in served} == by_path
    assert [rows.path(index) for index in range(NUM_PHOTOS)] != sorted(by_path)
    assert rows.classes == folder.classes


@pytest.mark.filterwarnings("ignore:1 of 12 files are not there")
def test_a_missing_file_is_replaced_or_raised(photos: Path, backend: dict[str, Any]) -> None:
    rows = [(path, path.parent.name) for path in sorted(photos.rglob("*.jpg"))[:12]]
    rows[5] = (photos / "none.jpg", "class0")
    settings = {"shuffle": False, "batch_size": 6, **backend}
    missing = r"E-MISSING\] sample=5 path=.*none\.jpg"  # from hdf5 when it builds its cache
    with pytest.raises(LoaderError, match=missing), open_loader(rows, **settings) as loader:
        serve(loader)
    if backend["backend"] != "hdf5":
        with open_loader(rows, on_bad_sample="replace", **settings) as loader:
            assert [index for index, *_ in serve(loader)] == [0, 1, 2, 3, 4, 6, 6, 7, 8, 9, 10, 11]
            assert [(bad.sample, bad.code) for bad in loader.ledger().bad] == [(5, "E-MISSING")]
