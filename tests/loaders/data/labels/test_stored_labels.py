"""Labels of every kind stored with the data: for each kind of data, on engines and ranks, resumed and cached."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folder_trees import settle
from photo_folder import photo, write_folder
from source_kinds import TABLES, OpenArguments, Rows, Where

from penstock.loaders import concat, create_loader, open_source, split
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.labels.stored_labels import keep_labels
from penstock.loaders.data.samples.columns import StoredValues
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_train
from penstock.pipelines.errors import LoaderError

NUM_PHOTOS = 13
TAGS = ("odd", "third")
KINDS: dict[str, Callable[[int], Any]] = {
    "price": lambda n: n / 8,
    "vector": lambda n: [float(n), n / 2],
    "set": lambda n: ["odd"] * (n % 2) + ["third"] * (n % 3 == 0),
    "class": lambda n: "cba"[n % 3],
}
SERVED: dict[str, Callable[[int], Any]] = {
    **KINDS,
    "set": lambda n: [n % 2, int(n % 3 == 0)],
    "class": lambda n: 2 - n % 3,
}
NAMED = list(KINDS)
CONTAINERS = [name for name in TABLES if name not in ("tsv", "feather")]


def write_data(container: str, folder: Path, names: list[str]) -> OpenArguments:
    """Write photos with labels of these kinds; a single name is not passed as a list."""
    columns = {name: [KINDS[name](n) for n in range(NUM_PHOTOS)] for name in names}
    declared = {"set": list(TAGS)} if "set" in names else {}
    rows = Rows(PHOTOS, columns, [f"{n % 3}/{n}.jpg" for n in range(NUM_PHOTOS)], declared=declared)
    spec, options = TABLES[container](Where(folder), rows)
    requested = [f"json:{name}" for name in names] if container == "tar" else names
    return spec, options if container == "list" else options | {"label": requested[0] if len(names) == 1 else requested}


PHOTOS = [photo(number) for number in range(NUM_PHOTOS)]
ENGINES: dict[str, dict[str, Any]] = {
    "hdf5": {"backend": "hdf5", "workers": 0},
    "dali": {"backend": "dali", "workers": 1},
}


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(24), "batch_size": 4, "dtype": torch.uint8, "seed": 3, "drop_last": False}
    return create_loader(source, **{**defaults, **settings})


def check(loader: Loader) -> list[int]:
    """Check the labels of the rest of an epoch; return its samples."""
    seen: list[int] = []
    for batch in loader.batches():
        assert set(batch.labels) == set(KINDS)
        for name, labels in batch.labels.items():
            assert labels.dtype == (torch.int64 if name == "class" else torch.float32)
            for row, index in enumerate(batch.index.tolist()):
                expected = SERVED[name](index) if index >= 0 else -1 if name == "class" else np.nan
                assert np.array_equal(
                    np.broadcast_to(expected, labels[row].shape), labels[row], equal_nan=name != "class"
                ), (name, index)
        seen += [index for index in batch.index.tolist() if index >= 0]
    return seen


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_kind_of_label_is_served_from_every_kind_of_data(tmp_path: Path, container: str) -> None:
    """On two ranks, resumed in the middle of an epoch after the data was opened again from the saved index."""
    spec, options = write_data(container, tmp_path, NAMED)
    served = []
    for rank in range(2):
        with open_loader(spec, **options, rank=rank, world_size=2, workers=2) as loader:
            batches = loader.batches()
            served += next(batches).index.tolist()
            with open_loader(spec, **options, rank=rank, world_size=2, workers=0) as resumed:
                resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                served += check(resumed)
            assert loader.classes == ()
            assert loader.label_classes == {"set": TAGS, "class": ("a", "b", "c")}
    assert sorted(served) == list(range(NUM_PHOTOS))
    for kind, value_of in SERVED.items():  # and each kind separately
        (tmp_path / kind).mkdir()
        spec, options = write_data(container, tmp_path / kind, [kind])
        source: Any = open_source(spec, **options)
        found = source.labels(np.arange(NUM_PHOTOS)) if kind == "class" else source.targets(np.arange(NUM_PHOTOS))
        assert found.tolist() == [value_of(number) for number in range(NUM_PHOTOS)]
        assert source.classes == {"set": (b"odd", b"third"), "class": (b"a", b"b", b"c")}.get(kind, ())


@pytest.mark.parametrize("container", ["csv", "parquet", "tar"])
@pytest.mark.parametrize("engine", ["hdf5", "dali"])
def test_backends_with_caches_serve_the_same_labels(tmp_path: Path, engine: str, container: str) -> None:
    """The cache stores only the images, built in advance or on first use, for labels of every kind."""
    spec, options = write_data(container, tmp_path, NAMED)
    cache, other = tmp_path / "images.h5", {**options, "label": [options["label"][0]]}
    build_cache(open_source(spec, **options), cache, workers=0)
    with open_loader(spec, **options, **ENGINES[engine], cache=cache) as loader:
        assert sorted(check(loader)) == list(range(NUM_PHOTOS))
        assert loader.paths(range(2)) == [os.fsdecode(open_source(spec, **options).path(n)) for n in range(2)]
    if container != "parquet":  # there, the one label column decides which rows are samples
        with open_loader(spec, **other, **ENGINES[engine], cache=cache) as loader:
            assert list(next(loader.batches()).labels) == ["price"]
    with pytest.warns(UserWarning, match="labels are not class numbers, and caches store class numbers only"):
        open_loader(cache, backend="hdf5").close()


def test_states_and_joined_data_require_the_same_label_classes(photos: Path) -> None:
    paths = sorted(photos.rglob("*.jpg"))[:2]

    def open_list(*names: str, **options: Any) -> Source:
        return open_source([(path, {"kind": name}) for path, name in zip(paths, names, strict=True)], **options)

    plain, renamed, listed = (
        open_list("a", "b"),
        open_list("x", "y"),
        open_list("a", "b", classes={"kind": ["a", "b", "c"]}),
    )
    with open_loader(plain) as loader:
        state = loader.state_dict()
    for other in (renamed, listed):
        with open_loader(other) as loader, pytest.raises(LoaderError, match="E-STATE"):
            loader.load_state_dict(state)
        with pytest.raises(ValueError, match="labels of joined sources must have the same classes"):
            concat([plain, other])
    joined = concat([plain, open_list("b", "a")])
    with open_loader(split(joined, 0.5)[0]) as loader:
        assert loader.label_classes == {"kind": ("a", "b")}


@pytest.mark.parametrize("container", ["csv", "arrow", "tar"])
def test_labels_are_saved_with_the_index(tmp_path: Path, own_cache: Path, container: str) -> None:
    """An index without its labels, or with other labels, is built again."""
    (tmp_path / "data").mkdir()
    spec, options = write_data(container, tmp_path / "data", ["price"])
    settle(tmp_path / "data")
    open_source(spec, **options)
    (labels,) = own_cache.glob("*_labels.index")
    first = labels.stat().st_ino
    open_source(spec, **options)
    assert labels.stat().st_ino == first
    other = {"": StoredValues(np.zeros(NUM_PHOTOS, np.float32))}
    for damage in (
        labels.unlink,
        lambda: labels.write_bytes(b"x"),
        lambda: keep_labels(other, os.fsencode(labels.name)),
    ):
        damage()
        found = open_source(spec, **options).targets(np.arange(NUM_PHOTOS))  # type: ignore[attr-defined]
        assert found.tolist() == [number / 8 for number in range(NUM_PHOTOS)]


@pytest.mark.filterwarnings("ignore:.*listed several times with different labels")
def test_a_million_floats_take_few_bytes(tmp_path: Path, own_cache: Path) -> None:
    """Measured in bytes of the table's index per row, without the file names."""
    (path,), rows = write_folder(tmp_path / "one", 1, classes=1).rglob("*.jpg"), 20_000
    table = tmp_path / "x.csv"
    table.write_text("\n".join(["path,price", *(f"{path},{row / 7}" for row in range(rows))]))
    settle(tmp_path)
    open_source(table, label="price")
    sizes = sum(file.stat().st_size for file in own_cache.glob("*.index"))
    assert sizes <= 60 * rows
