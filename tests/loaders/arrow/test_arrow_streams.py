"""The stream of the class folder, served from Arrow and Parquet files on every backend, by ranks and after a resume."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_tables import photo_table, write_arrow, write_parquet, write_saved

from penstock.loaders import create_loader
from penstock.loaders.batch import Batch
from penstock.loaders.loader import Loader
from penstock.loaders.sources.image_folder import ImageFolder
from penstock.pipelines import imagenet_train
from penstock.pipelines.native.library import native_library

BACKENDS: dict[str, dict[str, Any]] = {
    "2 threads": {"backend": "torch", "workers": 2, "workers_are": "threads"},
    "2 processes": {"backend": "torch", "workers": 2, "workers_are": "processes"},
    "hdf5": {"backend": "hdf5", "workers": 0},
    "dali": {"backend": "dali", "workers": 0},
}
Stream = list[tuple[Any, ...]]


def in_files(tmp_path: Path, folder: ImageFolder, _: Any) -> Any:
    for number, part in enumerate((photo_table(folder).slice(0, 25), photo_table(folder).slice(25))):
        write_arrow(tmp_path / f"part-{number}.arrow", part, stream=bool(number))
    return str(tmp_path / "part-*.arrow")


def saved(tmp_path: Path, folder: ImageFolder, _: Any) -> Any:
    """A folder whose rows lie the other way round, with the order that puts them right."""
    table = photo_table(folder).take(list(range(61))[::-1])
    return write_saved(tmp_path / "saved", table, order=list(range(61))[::-1])


def in_memory(_: Path, __: ImageFolder, dataset: Callable[[], Any]) -> Any:
    return dataset()


def in_parquet(tmp_path: Path, folder: ImageFolder, _: Any) -> Any:
    return write_parquet(tmp_path / "photos.parquet", photo_table(folder))


@pytest.fixture(params=[in_files, saved, in_memory, in_parquet])
def data(request: pytest.FixtureRequest, tmp_path: Path, folder: ImageFolder) -> Any:
    return request.param(tmp_path, folder, lambda: request.getfixturevalue("dataset"))


def open_loader(data: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(32), "batch_size": 12, "dtype": torch.uint8, "seed": 7, "workers": 0}
    return create_loader(data, **{**defaults, **settings})


def record(batch: Batch) -> tuple[Any, ...]:
    pixels = batch.images.permute(0, 2, 3, 1).contiguous().numpy()
    crcs = tuple(zlib.crc32(image.tobytes()) for image in pixels)
    return batch.epoch, batch.step, tuple(batch.index.tolist()), tuple(batch.labels.tolist()), crcs, pixels.copy()


def serve(loader: Loader, epochs: int = 2) -> Stream:
    return [record(b) for b in itertools.chain.from_iterable(loader.batches() for _ in range(loader.epoch, epochs))]


def join(ranks: list[Stream]) -> Stream:
    return [
        (
            *parts[0][:2],
            *(sum((p[column] for p in parts), ()) for column in (2, 3, 4)),
            np.concatenate([p[5] for p in parts]),
        )
        for parts in zip(*ranks, strict=True)
    ]


def assert_same_stream(served: Stream, wanted: Stream, *, rounds: bool) -> None:
    """That epochs, steps, indices and labels are equal, and pixels too, or nearly where a backend `rounds`."""
    assert [batch[:4] for batch in served] == [batch[:4] for batch in wanted]
    if not rounds:
        assert [batch[4] for batch in served] == [batch[4] for batch in wanted]
        return
    for one, two in zip(served, wanted, strict=True):
        assert np.abs(one[5].astype(int) - two[5]).mean(axis=(1, 2, 3)).max() <= 1


@pytest.fixture(scope="module")
def wanted(folder: ImageFolder) -> Stream:
    with open_loader(folder) as loader:
        return serve(loader)


@pytest.mark.parametrize("name", BACKENDS)
def test_the_stream_is_that_of_the_class_folder(
    data: Any, name: str, wanted: Stream, folder: ImageFolder, tmp_path: Path
) -> None:
    if native_library() is None:
        pytest.skip("the native library was not built here")
    settings = dict(BACKENDS[name])
    rounds = settings["backend"] == "dali"
    if settings["backend"] == "hdf5":
        settings["cache"] = tmp_path / "cache.h5"
    with open_loader(data, **settings) as loader:
        head = [record(batch) for batch in itertools.islice(loader.batches(), 3)]
        state = json.loads(json.dumps(loader.state_dict()))
    for world_size in (1, 2):
        ranks, tails = [], []
        for rank in range(world_size):
            place = {"rank": rank, "world_size": world_size, "batch_size": 12 // world_size}
            with open_loader(data, **settings, **place) as loader:
                ranks.append(serve(loader))
                loader.load_state_dict(state)
                tails.append(serve(loader))
        assert_same_stream(join(ranks), wanted, rounds=rounds)
        assert_same_stream(head + join(tails), wanted, rounds=rounds)
