"""Folders written by save_to_disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from photo_tables import assert_same_samples, photo_table, write_saved

from penstock.loaders.data.arrow.saved_dataset import is_saved_dataset
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.errors import LoaderError


def test_shards_are_read_in_the_order_of_the_state(tmp_path: Path, folder: ImageFolder) -> None:
    saved = write_saved(tmp_path / "saved", photo_table(folder), shards=12)
    assert is_saved_dataset(bytes(saved))
    source = open_source(saved)
    assert_same_samples(source, folder)
    assert source.describe().endswith("in 12 Arrow files")
    state = json.loads((saved / "state.json").read_text())
    state["_data_files"].reverse()
    (saved / "state.json").write_text(json.dumps(state))
    # shards of six rows: the last one is empty, the one before it has one row
    assert_same_samples(
        open_source(saved), folder, [n for shard in range(11)[::-1] for n in range(61)[shard * 6 :][:6]]
    )


def test_the_order_saved_by_older_versions_is_read(tmp_path: Path, folder: ImageFolder) -> None:
    order = [60, 3, 3, *range(20, 40)]
    saved = write_saved(tmp_path / "saved", photo_table(folder), order=order)
    source = open_source(saved)
    assert_same_samples(source, folder, order)
    assert source.path(0).endswith(b"data-00001-of-00002.arrow:row 29 (0059.jpg)")
    other = write_saved(tmp_path / "other", photo_table(folder), order=order[::-1])
    (other / "indices.arrow").replace(saved / "indices.arrow")
    assert_same_samples(open_source(saved), folder, order[::-1])
    bad = write_saved(tmp_path / "bad", photo_table(folder), order=[0, 61])
    with pytest.raises(LoaderError, match=r"E-CORRUPT.*indices must be below 61, got 61"):
        open_source(bad)


def test_splits_are_listed(tmp_path: Path, folder: ImageFolder) -> None:
    root = tmp_path / "dict"
    for name, part in (("train", photo_table(folder)), ("test", photo_table(folder).slice(50))):
        write_saved(root / name, part)
    (root / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for wrong in ({}, {"split": "val"}):
        with pytest.raises(ValueError, match=r"split must be one of train, test of '.*dict', got "):
            open_source(root, **wrong)
    source = open_source(root, split="test")
    assert_same_samples(source, folder, list(range(50, 61)))
    assert_same_samples(open_source(root / "train", split="train"), folder)
    with pytest.raises(ValueError, match="split must be the saved split, 'train', got 'test'"):
        open_source(root / "train", split="test")


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("state.json", "{", "E-CORRUPT"),
        ("state.json", "[]", "E-CORRUPT"),
        ("state.json", '{"_data_files": []}', "E-NODATA"),
        ("state.json", '{"_data_files": [{"filename": "../other/data-00000-of-00002.arrow"}]}', "E-CORRUPT"),
        ("state.json", '{"_data_files": [1]}', "E-CORRUPT"),
        ("state.json", '{"_data_files": [{"filename": "absent.arrow"}]}', "E-MISSING"),
    ],
)
def test_an_invalid_state_is_refused(tmp_path: Path, folder: ImageFolder, name: str, text: str, code: str) -> None:
    for saved in ("saved", "other"):
        write_saved(tmp_path / saved, photo_table(folder))
    (tmp_path / "saved" / name).write_text(text)
    with pytest.raises(LoaderError, match=code):
        open_source(tmp_path / "saved")


def test_folders_of_images_are_not_mistaken_for_data_sets(tmp_path: Path, folder: ImageFolder) -> None:
    for files in ((), ("state.json",), ("dataset_info.json",)):
        for name in files:
            (tmp_path / name).write_text("{}")
        assert not is_saved_dataset(bytes(tmp_path))
        for name in files:
            (tmp_path / name).unlink()
    assert isinstance(open_source(folder.root.decode()), ImageFolder)
    with pytest.raises(ValueError, match="no option split"):
        open_source(folder.root.decode(), split="train")


def test_data_saved_by_datasets_is_read(tmp_path: Path, folder: ImageFolder, dataset: Any) -> None:
    datasets = pytest.importorskip("datasets")
    shuffled = dataset.shuffle(seed=1)
    order = shuffled["number"][:]
    shuffled.save_to_disk(tmp_path / "saved", num_shards=3)
    assert_same_samples(open_source(tmp_path / "saved"), folder, list(order))
    parts = dataset.train_test_split(0.2, seed=2)
    parts.save_to_disk(tmp_path / "parts")
    assert isinstance(parts, datasets.DatasetDict)
    for split in ("train", "test"):
        assert_same_samples(open_source(tmp_path / "parts", split=split), folder, list(parts[split]["number"][:]))
