"""The stream of a part of the data or of several data sets: same on all backends and ranks, and after a resume."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from photo_folder import photo, write_folder

from penstock.loaders import LoaderError, create_loader, split
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_train

NUM_PHOTOS, SIZE, BATCH = 61, 32, 12
BACKENDS: dict[str, dict[str, Any]] = {
    "torch, threads": {"backend": "torch", "workers": 2, "workers_are": "threads"},
    "torch, processes": {"backend": "torch", "workers": 2, "workers_are": "processes"},
    "hdf5": {"backend": "hdf5", "workers": 2},
    "dali": {"backend": "dali", "workers": 2},
}
Row = tuple[int, int, tuple[int, ...], bool]  # index, label, crop, flip
Served = list[tuple[list[Row], npt.NDArray[np.uint8]]]  # per batch


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), NUM_PHOTOS)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    settings = BACKENDS[request.param]
    return {**settings, "cache": tmp_path / "all.h5"} if settings["backend"] == "hdf5" else settings


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(SIZE), "batch_size": BATCH, "dtype": torch.uint8, "seed": 7, "workers": 0}
    return create_loader(source, **{**defaults, **settings})


def serve(loader: Loader, epochs: int = 2) -> Served:
    served: Served = []
    while loader.epoch < epochs:
        for batch in loader.batches():
            columns = (
                batch.index.tolist(),
                batch.labels.tolist(),
                map(tuple, batch.windows.tolist()),
                batch.flips.tolist(),
            )
            served.append((list(zip(*columns, strict=True)), batch.images.permute(0, 2, 3, 1).numpy().copy()))
    return served


def assert_equal(found: Served, expected: Served, *, rounds: bool) -> None:
    """`rounds`: allow for DALI's resize, which sums in another precision."""
    assert [rows for rows, _ in found] == [rows for rows, _ in expected]
    for (_, some), (_, other) in zip(found, expected, strict=True):
        distance = np.abs(some.astype(int) - other.astype(int))
        assert distance.mean() <= 1 if rounds else not distance.any()


def pieces(root: Path) -> tuple[Path, Path, list[int]]:
    """Write two folders; each has a class that the other lacks. Return them and the photo numbers in order."""
    numbers = []
    for name, first, classes in (("a", 0, "cat dog"), ("b", 100, "ant dog eel")):
        for of_class in classes.split():
            (root / name / of_class).mkdir(parents=True)
            for number in range(first, first + 9):
                (root / name / of_class / f"{number:03d}.jpg").write_bytes(photo(number))
            numbers += range(first, first + 9)
            first += 9
    return root / "a", root / "b", numbers


def test_a_part_is_served_like_a_folder_of_its_files(photos: Path, tmp_path: Path, backend: dict[str, Any]) -> None:
    part, _ = split(photos, 0.75)
    for i in range(len(part)):
        file = tmp_path / "copy" / part.name(i).decode()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(part.read(i))  # type: ignore[arg-type]
    with open_loader(tmp_path / "copy", decoder="simplejpeg") as loader:
        expected = serve(loader)
    with open_loader(part, **backend) as loader:
        assert_equal(serve(loader), expected, rounds=backend["backend"] == "dali")
    if "cache" in backend:  # of the whole folder
        with open_loader(backend["cache"], backend="hdf5", subset=part.indices, max_per_class=99) as loader:
            assert_equal(serve(loader), expected, rounds=False)


def test_ranks_and_a_resume_during_an_epoch_serve_the_same(photos: Path, backend: dict[str, Any]) -> None:
    chosen: dict[str, Any] = {"subset": "::-2", "max_per_class": 9}
    with open_loader(photos, decoder="simplejpeg", **chosen) as loader:
        expected = serve(loader)
    assert len(expected) == 4
    rounds = backend["backend"] == "dali"
    ranks = []
    for rank in range(2):
        settings = {**backend, "batch_size": BATCH // 2, "rank": rank, "world_size": 2}
        with open_loader(photos, **chosen, **settings) as loader:
            ranks.append(serve(loader))
    joined = [(a[0] + b[0], np.concatenate((a[1], b[1]))) for a, b in zip(*ranks, strict=True)]
    assert_equal(joined, expected, rounds=rounds)
    with open_loader(photos, **chosen, **backend) as loader:
        stream = itertools.chain.from_iterable(loader.batches() for _ in range(2))
        for _ in itertools.islice(stream, 3):
            pass
        state = json.loads(json.dumps(loader.state_dict()))
    with open_loader(photos, **chosen, workers=1) as loader:
        loader.load_state_dict(state)
        assert_equal(serve(loader), expected[3:], rounds=False)


@pytest.mark.filterwarnings("ignore:the data has no labels")
def test_several_folders_are_served_like_one(tmp_path: Path, backend: dict[str, Any]) -> None:
    one, two, numbers = pieces(tmp_path)
    labels = np.repeat([1, 2, 0, 2, 3], 9).tolist()  # ant, cat, dog, eel
    (tmp_path / "flat").mkdir()
    for place, number in enumerate(numbers):
        (tmp_path / "flat" / f"{place:03d}.jpg").write_bytes(photo(number))
    with open_loader(tmp_path / "flat", decoder="simplejpeg") as loader:
        expected = [
            ([(index, labels[index], window, flip) for index, _, window, flip in rows], pixels)
            for rows, pixels in serve(loader)
        ]
    with open_loader([one, two], **backend) as loader:
        assert_equal(serve(loader), expected, rounds=backend["backend"] == "dali")
        assert loader.ledger(0).delivered == 36
        if backend["backend"] == "torch":
            assert loader.describe()["decoder"] == "native"


def test_a_resume_refuses_a_part_of_another_size_or_with_other_samples(photos: Path) -> None:
    with open_loader(photos, subset="::2") as loader:
        next(loader.batches())
        state = loader.state_dict()
    for subset, message in (("1::2", "now 30"), (range(1, 61, 2), "now 30"), ([*range(1, 61, 2), 0], "other images")):
        with open_loader(photos, subset=subset) as loader, pytest.raises(LoaderError, match=f"E-STATE.*{message}"):
            loader.load_state_dict(state)
    with open_loader(photos, subset=list(range(0, 61, 2))) as loader:  # the same samples, specified differently
        loader.load_state_dict(state)
        assert loader.state_dict() == state
