"""Labels of every kind straight from the data: from each kind of data, on the engines, ranks, resumed and cached."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from photo_folder import write_folder
from photo_tables import photo_table, write_arrow, write_parquet, write_saved
from tar_files import write_tar

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
NAMED = "named"
Held = tuple[Any, dict[str, Any]]  # what open_source takes, and its options
Columns = dict[str, list[Any]]


def columns(kind: str) -> Columns:
    kinds = KINDS if kind == NAMED else {kind: KINDS[kind]}
    return {name: [of(n) for n in range(NUM_PHOTOS)] for name, of in kinds.items()}


def wanted(kind: str) -> Any:
    """The option `label` of tables."""
    return list(KINDS) if kind == NAMED else kind


def paths_of(folder: Path) -> list[str]:
    source = open_source(folder)
    return [os.fsdecode(source.path(n)) for n in range(NUM_PHOTOS)]


def as_list(folder: Path, tmp: Path, kind: str) -> Held:
    of = columns(kind)
    rows = [dict(zip(of, row, strict=True)) for row in zip(*of.values(), strict=True)]
    return list(zip(paths_of(folder), rows if kind == NAMED else of[kind], strict=True)), {}


def as_csv(folder: Path, tmp: Path, kind: str) -> Held:
    of = {name: [v if name in ("price", "class") else json.dumps(v) for v in vs] for name, vs in columns(kind).items()}
    with open(tmp / "x.csv", "w", newline="") as file:
        csv.writer(file).writerows([["path", *of], *zip(paths_of(folder), *of.values(), strict=True)])
    return tmp / "x.csv", {"label": wanted(kind)}


def as_json_lines(folder: Path, tmp: Path, kind: str) -> Held:
    of = {"path": paths_of(folder), **columns(kind)}
    lines = [json.dumps(dict(zip(of, row, strict=True))) for row in zip(*of.values(), strict=True)]
    (tmp / "x.jsonl").write_text("\n".join(lines))
    return tmp / "x.jsonl", {"label": wanted(kind)}


def as_parquet_of_paths(folder: Path, tmp: Path, kind: str) -> Held:
    pq.write_table(pa.table({"path": paths_of(folder), **columns(kind)}), tmp / "x.parquet", row_group_size=5)
    return tmp / "x.parquet", {"label": wanted(kind)}


class Frame:
    """What pandas and polars have in common."""

    def __init__(self, columns: Columns) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


def as_frame(folder: Path, tmp: Path, kind: str) -> Held:
    return Frame({"path": paths_of(folder), **columns(kind)}), {"label": wanted(kind)}


def with_columns(folder: Path, kind: str) -> pa.Table:
    """A table of images whose sets are of declared classes, as Hugging Face keeps them."""
    table = photo_table(open_source(folder))
    features = {"image": {"_type": "Image"}}
    for name, values in columns(kind).items():
        if name == "set":
            values = [[TAGS.index(tag) for tag in tags] for tags in values]
            features["set"] = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": list(TAGS)}}  # type: ignore[dict-item]
        table = table.append_column(name, pa.array(values))
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def as_arrow(folder: Path, tmp: Path, kind: str) -> Held:
    return write_arrow(tmp / "x.arrow", with_columns(folder, kind), rows=5), {"label": wanted(kind)}


def as_parquet(folder: Path, tmp: Path, kind: str) -> Held:
    return write_parquet(tmp / "x.parquet", with_columns(folder, kind), rows=5), {"label": wanted(kind)}


def as_saved(folder: Path, tmp: Path, kind: str) -> Held:
    return write_saved(tmp / "saved", with_columns(folder, kind)), {"label": wanted(kind)}


def as_dataset(folder: Path, tmp: Path, kind: str) -> Held:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset(with_columns(folder, kind).replace_schema_metadata(None))
    data = data.cast_column("image", datasets.Image())
    if "set" in data.column_names:
        data = data.cast_column("set", datasets.Sequence(datasets.ClassLabel(names=list(TAGS))))
    return data, {"label": wanted(kind)}


def as_tar(folder: Path, tmp: Path, kind: str) -> Held:
    of, files = columns(kind), list[tuple[str, bytes]]()
    for number, path in enumerate(paths_of(folder)):
        files.append((f"{number}.jpg", Path(path).read_bytes()))
        files.append((f"{number}.json", json.dumps({name: values[number] for name, values in of.items()}).encode()))
    fields = [f"json:{name}" for name in of]
    return write_tar(tmp / "x.tar", files), {"label": fields if kind == NAMED else fields[0]}


HOLDERS = (as_list, as_csv, as_json_lines, as_parquet_of_paths, as_frame)
HOLDERS += (as_arrow, as_parquet, as_saved, as_dataset, as_tar)
ENGINES: dict[str, dict[str, Any]] = {
    "processes": {"workers": 2, "workers_are": "processes", "decoder": "simplejpeg"},
    "hdf5": {"backend": "hdf5", "workers": 0},
    "dali": {"backend": "dali", "workers": 1},
}


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(24), "batch_size": 4, "dtype": torch.uint8, "seed": 3, "drop_last": False}
    return create_loader(source, **{**defaults, **settings})


def check(loader: Loader) -> list[int]:
    """The labels of the rest of an epoch are those of their samples; returns these samples."""
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


@pytest.mark.parametrize("hold", HOLDERS)
def test_every_kind_in_every_holder(photos: Path, tmp_path: Path, hold: Callable[..., Held]) -> None:
    """On two ranks, resumed in the middle of an epoch on another opening of the data, which finds what was saved."""
    spec, options = hold(photos, tmp_path, NAMED)
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
    for kind, of in SERVED.items():  # and each alone
        (tmp_path / kind).mkdir()
        spec, options = hold(photos, tmp_path / kind, kind)
        source: Any = open_source(spec, **options)
        found = source.labels(np.arange(NUM_PHOTOS)) if kind == "class" else source.targets(np.arange(NUM_PHOTOS))
        assert found.tolist() == [of(number) for number in range(NUM_PHOTOS)]
        assert source.classes == {"set": (b"odd", b"third"), "class": (b"a", b"b", b"c")}.get(kind, ())


@pytest.mark.parametrize("hold", [as_csv, as_parquet, as_tar])
def test_workers_that_are_processes(photos: Path, tmp_path: Path, hold: Callable[..., Held]) -> None:
    spec, options = hold(photos, tmp_path, NAMED)
    with open_loader(spec, **options, **ENGINES["processes"]) as loader:
        assert sorted(check(loader)) == list(range(NUM_PHOTOS))


@pytest.mark.parametrize("hold", [as_csv, as_parquet, as_tar])
@pytest.mark.parametrize("engine", ["hdf5", "dali"])
def test_backends_with_caches(photos: Path, tmp_path: Path, engine: str, hold: Callable[..., Held]) -> None:
    """The cache holds the images, whether it is built in advance or on first use, for labels of every kind."""
    spec, options = hold(photos, tmp_path, NAMED)
    cache, other = tmp_path / "images.h5", {**options, "label": [options["label"][0]]}
    build_cache(open_source(spec, **options), cache, workers=0)
    with open_loader(spec, **options, **ENGINES[engine], cache=cache) as loader:
        assert sorted(check(loader)) == list(range(NUM_PHOTOS))
        assert loader.paths(range(2)) == [os.fsdecode(open_source(spec, **options).path(n)) for n in range(2)]
    if hold is not as_parquet:  # whose one column of labels decides which rows are samples
        with open_loader(spec, **other, **ENGINES[engine], cache=cache) as loader:
            assert list(next(loader.batches()).labels) == ["price"]
    with pytest.warns(UserWarning, match="labels of this data are no class numbers, and a cache does not hold them"):
        open_loader(cache, backend="hdf5").close()


def test_states_and_joined_data_know_the_classes_of_labels(photos: Path) -> None:
    paths = paths_of(photos)[:2]

    def of(*names: str, **options: Any) -> Source:
        return open_source([(path, {"kind": name}) for path, name in zip(paths, names, strict=True)], **options)

    plain, renamed, listed = of("a", "b"), of("x", "y"), of("a", "b", classes={"kind": ["a", "b", "c"]})
    with open_loader(plain) as loader:
        state = loader.state_dict()
    for other in (renamed, listed):
        with open_loader(other) as loader, pytest.raises(LoaderError, match="E-STATE"):
            loader.load_state_dict(state)
        with pytest.raises(ValueError, match="labels of joined sources must have the same classes"):
            concat([plain, other])
    joined = concat([plain, of("b", "a")])
    with open_loader(split(joined, 0.5)[0]) as loader:
        assert loader.label_classes == {"kind": ("a", "b")}


@pytest.mark.parametrize("hold", [as_csv, as_arrow, as_tar])
def test_labels_are_saved_with_the_index(
    photos: Path, tmp_path: Path, own_cache: Path, hold: Callable[..., Held]
) -> None:
    """An index without its labels, or with others, is made again."""
    spec, options = hold(photos, tmp_path, "price")
    if isinstance(spec, Path):
        os.utime(spec, (1e9, 1e9))
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


def test_a_million_floats_take_few_bytes(tmp_path: Path, own_cache: Path) -> None:
    """As a part of the size: the bytes of the index of a table per row, without the names of the files."""
    folder, rows = write_folder(tmp_path / "one", 1, classes=1), 20_000
    path = paths_of_one(folder)
    table = tmp_path / "x.csv"
    table.write_text("\n".join(["path,price", *(f"{path},{row / 7}" for row in range(rows))]))
    os.utime(table, (1e9, 1e9))
    open_source(table, label="price")
    sizes = sum(file.stat().st_size for file in own_cache.glob("*.index"))
    assert sizes <= 60 * rows


def paths_of_one(folder: Path) -> str:
    return os.fsdecode(open_source(folder).path(0))
