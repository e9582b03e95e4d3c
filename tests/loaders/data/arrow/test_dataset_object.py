"""Data sets of the package `datasets`, memory-mapped or in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_tables import assert_same_samples

from penstock.loaders import Column, with_fields
from penstock.loaders.data.arrow.dataset_object import is_dataset
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.errors import LoaderError

datasets = pytest.importorskip("datasets")


@pytest.fixture(params=["in memory", "mapped"])
def placed(request: pytest.FixtureRequest, dataset: Any, tmp_path: Path) -> Any:
    """The data set, in memory or memory-mapped from two files."""
    if request.param == "in memory":
        return dataset
    dataset.save_to_disk(tmp_path / "saved", num_shards=2)
    return datasets.load_from_disk(tmp_path / "saved")


def containers(source: Any) -> list[bytes]:
    return [source.samples.container(number).name for number in range(source.samples.num_containers)]


def test_rows_in_memory_and_in_files_equal_the_folder(placed: Any, folder: ImageFolder) -> None:
    assert is_dataset(placed)
    source = open_source(placed)
    assert isinstance(source, IndexedSource)
    assert_same_samples(source, folder)
    mapped = [os.fsencode(file["filename"]) for file in placed.cache_files]
    assert containers(source) == mapped if mapped else containers(source)[0].startswith(b"/proc/")
    assert source.refreshed() is source
    again = open_source(placed)
    assert again.fingerprint == source.fingerprint


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # of datasets, about pyarrow
def test_every_kind_of_selection_is_served(placed: Any, folder: ImageFolder) -> None:
    views = [
        placed.shuffle(seed=3),
        placed.select(range(13, 40)),
        placed.select([7, 7, 0]),
        placed.shuffle(seed=3).select(range(5, 25)),
        placed.select(range(5, 60)).select([3, 1]),
        placed.filter(lambda number: number % 2 == 0, input_columns="number"),
        placed.train_test_split(0.3, seed=1)["test"],
        placed.shard(4, 1),
        placed.sort("number", reverse=True),
        placed.with_format("torch"),
        placed.with_format("numpy", columns=["label"]),
        placed.rename_column("image", "picture").remove_columns("number").add_column("number", list(range(61))),
        datasets.concatenate_datasets([placed.select([60]), placed, placed.shuffle(seed=4)]),
    ]
    for view in views:
        order = [int(number) for number in view.with_format(None)["number"][:]]
        assert_same_samples(open_source(view), folder, order)
    assert len({open_source(view).fingerprint for view in views[:8]}) == 8


def test_memory_is_released(dataset: Any) -> None:
    source = open_source(dataset)
    place = containers(source)[0]
    assert os.path.exists(place)
    del source
    assert not os.path.exists(place)


def test_rows_with_paths_of_images_are_read(folder: ImageFolder) -> None:
    paths = [os.fsdecode(folder.path(index)) for index in range(9)]
    made = datasets.Dataset.from_dict({"image": paths, "label": [0] * 9})
    for view in (made, made.cast_column("image", datasets.Image())):
        source = open_source(view)
        assert [source.read(index) for index in range(9)] == [folder.read(index) for index in range(9)]
        assert containers(source) == [folder.path(index) for index in range(9)]


def test_a_file_that_changes_is_refused(dataset: Any, tmp_path: Path) -> None:
    dataset.save_to_disk(tmp_path / "saved", num_shards=2)
    source = open_source(datasets.load_from_disk(tmp_path / "saved"))
    path = tmp_path / "saved" / "data-00001-of-00002.arrow"
    os.truncate(path, path.stat().st_size - 100)
    assert source.read(0)
    with pytest.raises(LoaderError, match=r"E-CHANGED\] sample=60"):
        source.read(60)
    with pytest.raises(LoaderError, match=r"E-CHANGED.*: fix=load the data set again"):
        source.refreshed()  # type: ignore[attr-defined]


def test_a_replaced_file_is_read_from_its_mapping(dataset: Any, folder: ImageFolder, tmp_path: Path) -> None:
    dataset.save_to_disk(tmp_path / "saved")
    loaded = datasets.load_from_disk(tmp_path / "saved")
    dataset.select(range(3)).save_to_disk(tmp_path / "other")
    os.replace(tmp_path / "other" / "data-00000-of-00001.arrow", tmp_path / "saved" / "data-00000-of-00001.arrow")
    source = open_source(loaded)
    assert_same_samples(source, folder)
    assert containers(source)[0].startswith(b"/proc/")


def test_splits_must_be_chosen_and_streams_are_refused(dataset: Any) -> None:
    parts = dataset.train_test_split(0.2, seed=1)
    with pytest.raises(ValueError, match="split must be one of train, test, got None"):
        open_source(parts)
    assert len(open_source(parts, split="test")) == 13
    with pytest.raises(ValueError, match="split must be the data set's split, 'None', got 'test'"):
        open_source(dataset, split="test")
    with pytest.raises(ValueError, match=r"rows of an IterableDataset cannot be read.*save_to_disk"):
        open_source(dataset.to_iterable_dataset())


def _darker(rows: Any) -> Any:
    return rows


def test_a_transform_of_the_data_set_is_refused(dataset: Any) -> None:
    """The transform would not be called. Labels and fields refuse it too; without it the data is served."""
    changed = dataset.select(range(5))
    changed.set_transform(_darker)
    parts = datasets.DatasetDict(train=changed, test=dataset)
    refusal = (
        r"the data set has the transform _darker .*pass a function of one image as transform=.*with_format\(None\)"
    )
    for source, options in (
        (dataset.with_transform(_darker), {}),
        (dataset.with_transform(_darker, columns=["image"], output_all_columns=True), {}),
        (changed, {}),
        (changed.select([1, 0]), {}),
        (parts, {"split": "train"}),
    ):
        with pytest.raises(ValueError, match=refusal):
            open_source(source, **options)
    with pytest.raises(ValueError, match=refusal):
        with_fields(dataset, number=Column("number", table=dataset.with_transform(_darker), json=True))
    with pytest.raises(ValueError, match="the data set has the transform _Twice"):
        open_source(dataset.with_transform(_Twice()))
    assert len(open_source(parts, split="test")) == len(dataset)
    assert len(open_source(changed.with_format(None))) == 5


class _Twice:
    def __call__(self, rows: Any) -> Any:
        return rows


def test_columns_without_encoded_images_are_listed(dataset: Any) -> None:
    pixels = datasets.Dataset.from_dict(
        {"image": np.zeros((2, 4, 4, 3), np.uint8), "label": [0, 1]},
        features=datasets.Features({"image": datasets.Array3D((4, 4, 3), "uint8"), "label": datasets.Value("int64")}),
    )
    with pytest.raises(ValueError, match=r"image must be .*the columns are image \(extension.*label \(int64\)"):
        open_source(pixels)
    with pytest.raises(ValueError, match=r"label must be .*no column has a known name"):
        open_source(dataset.remove_columns("label"))
    assert open_source(dataset.remove_columns("label"), label=None).classes == (b".",)


def test_other_objects_are_not_data_sets() -> None:
    assert not any(map(is_dataset, (None, [], {"train": 1}, np.zeros(3), datasets.Features({}))))
