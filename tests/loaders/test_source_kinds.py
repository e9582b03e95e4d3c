"""Every kind of source serves the stream of the class folder with the same files: same order, labels and pixels."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nginx_server import NGINX, NO_NGINX, serve_by_nginx
from photo_folder import photo
from photo_tables import write_saved
from range_server import RangeServer
from served_steps import Step, as_steps, join, serve_steps
from source_kinds import Data, OpenArguments, Rows, Where, kinds_that, serve_kinds

from penstock.loaders import create_loader, open_source
from penstock.loaders.data.sources.sample import read_sample
from penstock.loaders.front.loader import Loader
from penstock.loaders.front.open_source import SOURCE_OPTIONS
from penstock.pipelines import imagenet_train

NUM_PHOTOS = 29
ROWS = Rows.of(
    [photo(number) for number in range(NUM_PHOTOS)], [f"class{3 * n // NUM_PHOTOS}" for n in range(NUM_PHOTOS)], parts=3
)


def saved_in_another_order(data: Data) -> OpenArguments:
    """Rows in reverse order, and the order that corrects them."""
    order = list(range(NUM_PHOTOS))[::-1]
    return write_saved(data.where.folder / "ordered", ROWS.table(image=ROWS.images).take(order), order=order), {}


def part_of_more(data: Data) -> OpenArguments:
    """The photos in reverse order, and another one before each."""
    images = [data for number in range(NUM_PHOTOS)[::-1] for data in (photo(100 + number), ROWS.images[number])]
    labels = [label for label in ROWS.columns["label"][::-1] for _ in range(2)]
    where = Where(data.where.folder / "more", data.where.address(data.where.folder / "more"))
    where.folder.mkdir()
    spec, _ = data.kind.write(where, Rows.of(images, labels, parts=3))
    return spec, {"subset": "::-2", "max_per_class": NUM_PHOTOS}


def two_folders(data: Data) -> OpenArguments:
    """Each has a class that the other lacks, so that both number their classes differently."""
    folders = []
    for name, part in {"a": range(NUM_PHOTOS // 2), "b": range(NUM_PHOTOS // 2, NUM_PHOTOS)}.items():
        folders.append(data.where.folder / name)
        ROWS.cut(part).place(folders[-1])
    return folders, {}


# Other forms of a kind.
FORMS: dict[str, tuple[str, Callable[[Data], OpenArguments]]] = {
    "saved in another order": ("saved", saved_in_another_order),
    "part of a list": ("list", part_of_more),
    "part of tars by URL": ("tars by URL", part_of_more),
    "two folders": ("folder", two_folders),
}
SOURCES = [*kinds_that("stream"), *FORMS]
ENGINES: dict[str, dict[str, Any]] = {
    "2 threads": {"workers": 2, "workers_are": "threads"},
    "2 processes": {"workers": 2, "workers_are": "processes"},
    "hdf5": {"backend": "hdf5", "workers": 2},
    "dali": {"backend": "dali", "workers": 2, "readers": 2},
}
# One of each class of source, which is all that an engine and a rank depend on.
DISTINCT = (
    *("csv", "tars", "parquet", "dataset", "tars by URL, copied", "csv by URL"),
    *("parquet by URL, copied", "hdf5 by URL", "part of a list", "part of tars by URL", "two folders"),
)
CASES = [(kind, "2 threads") for kind in SOURCES]
CASES += [(kind, engine) for kind in DISTINCT for engine in ENGINES if engine != "2 threads"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    with serve_kinds(tmp_path_factory.mktemp("kinds")) as server:
        yield server


@pytest.fixture(scope="module")
def held(server: RangeServer) -> Callable[[str], OpenArguments]:
    """Return a function that creates a kind of data on first use and returns how to open it."""

    @functools.cache
    def hold(name: str) -> OpenArguments:
        kind, form = FORMS.get(name, (name, lambda data: (data.spec, data.options)))
        return form(Data(server, kind, ROWS))

    return hold


def open_loader(held: OpenArguments, **settings: Any) -> Loader:
    source, options = held
    settings = {"batch_size": 6, "seed": 5, "workers": 0, **options, **settings}
    return create_loader(source, pipeline=imagenet_train(24), dtype=torch.uint8, **settings)


@pytest.fixture(scope="module")
def expected(held: Callable[[str], OpenArguments]) -> list[Step]:
    with open_loader(held("folder")) as loader:
        return serve_steps(loader)


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_has_samples_by_number(held: Callable[[str], OpenArguments], kind: str) -> None:
    (spec, options), (folder, _) = held(kind), held("folder")
    reading = {name: value for name, value in options.items() if name in SOURCE_OPTIONS}
    source, reference = open_source(spec, **reading), open_source(folder)
    for number in (0, 11, -1):
        sample = read_sample(source, number) if kind == "own source" else source[number]
        other = reference[number]
        image, label = sample
        assert np.array_equal(image, other.image)
        assert (image.dtype, label, sample.class_name, sample.index) == (
            np.uint8,
            *(other.label, other.class_name),
            number % NUM_PHOTOS,
        )
    assert kind == "own source" or sum(1 for _ in source) == NUM_PHOTOS


@pytest.mark.parametrize(("kind", "engine"), CASES)
def test_every_kind_serves_the_stream_of_the_folder(
    held: Callable[[str], OpenArguments], expected: list[Step], tmp_path: Path, kind: str, engine: str
) -> None:
    settings = dict(ENGINES[engine])
    if settings.get("backend") == "hdf5" and "hdf5" not in kind:
        settings["cache"] = tmp_path / "c.h5"
    epochs = 2 if engine == "2 threads" else 1
    with open_loader(held(kind), **settings) as loader:
        assert engine == "dali" or (loader.describe()["decoder"] == "native") == (kind != "own source")
        assert serve_steps(loader, epochs, rounds=engine == "dali") == [
            step for step in expected if step.epoch < epochs
        ]


@pytest.mark.skipif(not NGINX, reason=NO_NGINX)
def test_nginx_serves_the_stream_of_the_folder(server: RangeServer, expected: list[Step], tmp_path: Path) -> None:
    tars = Data(server, "tars", ROWS)
    with serve_by_nginx(server.root, tmp_path) as url:
        spec = tars.spec.replace(str(server.root), url)
        with open_loader((spec, {}), **ENGINES["2 threads"]) as loader:
            assert serve_steps(loader) == expected


@pytest.mark.parametrize("kind", DISTINCT)
def test_ranks_share_the_stream_and_resume(
    held: Callable[[str], OpenArguments], expected: list[Step], kind: str
) -> None:
    """Each rank starts with Python's decoder, and resumes with the data opened again."""
    parts = []
    for rank in range(2):
        place = {"batch_size": 3, "rank": rank, "world_size": 2}
        with open_loader(held(kind), decoder="simplejpeg", **place) as loader:
            steps = as_steps(itertools.islice(loader.batches(), 2))
            state = json.loads(json.dumps(loader.state_dict()))
        with open_loader(held(kind), **place) as loader:
            loader.load_state_dict(state)
            parts.append(steps + serve_steps(loader))
    assert join(parts) == expected
