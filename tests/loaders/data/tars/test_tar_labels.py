"""Labels in tars: where they are stored, and the resulting class numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import photo
from tar_files import refusal_of, write_tar

from penstock.loaders import open_source
from penstock.loaders.data.sources.contract import has_targets
from penstock.loaders.data.tars.tar_labels import folder_labels
from penstock.pipelines.errors import LoaderError

PHOTO = photo(0)
NOT_KNOWN = type("NAType", (), {})()  # the name that pandas uses


def plant(path: Path, samples: Mapping[str, Mapping[str, bytes]]) -> Path:
    """Write a tar of samples (key -> suffix -> content), each with a .jpg as its second member."""
    files = []
    for key, members in samples.items():
        parts = [(f"{key}.{suffix}", content) for suffix, content in members.items()]
        files += [*parts[:1], (f"{key}.jpg", PHOTO), *parts[1:]]
    return write_tar(path, files)


def labels(path: Any, **options: Any) -> tuple[list[Any], list[str]]:
    source: Any = open_source(path, **options)
    look_up = source.targets if has_targets(source) else source.labels
    return look_up(np.arange(len(source))).tolist(), list(map(os.fsdecode, source.classes))


# ---- members ----


def test_cls_members_are_class_numbers(tmp_path: Path) -> None:
    path = plant(tmp_path / "x.tar", {"0": {"cls": b"2\n"}, "1": {"cls": b" 0"}, "2": {"cls": b"2"}})
    assert labels(path) == labels(path, label="cls") == ([2, 0, 2], ["0", "1", "2"])
    assert labels(path, classes=["a", "b", b"c", "d"]) == ([2, 0, 2], ["a", "b", "c", "d"])


def test_cls_members_can_be_class_names(tmp_path: Path) -> None:
    path = plant(tmp_path / "x.tar", {"0": {"cls": b"tench"}, "1": {"cls": b"10"}, "2": {"cls": b"robin \xff"}})
    with pytest.raises(LoaderError, match=r"label '10' is a number, but label 'tench' .* is a name: .*classes="):
        labels(path)
    assert labels(path, classes=["tench", "10", b"robin \xff"]) == ([0, 1, 2], ["tench", "10", "robin \udcff"])


@pytest.mark.parametrize("name", ["label", "cls"])
def test_integer_fields_of_json_members_are_class_numbers(tmp_path: Path, name: str) -> None:
    samples = {str(i): {"txt": b"9", "json": json.dumps({name: i * 2, "other": [1]}).encode()} for i in range(3)}
    path = plant(tmp_path / "x.tar", samples)
    assert labels(path) == labels(path, label=f"json:{name}") == ([0, 2, 4], ["0", "1", "2", "3", "4"])


def test_a_json_field_can_be_chosen(tmp_path: Path) -> None:
    large = {"class": "tench", "pad": "x" * 20_000}
    samples = {"d/0": {"json": json.dumps(large).encode()}, "e/1": {"json": '{"class": "Ärger"}'.encode()}}
    path = plant(tmp_path / "x.tar", samples)
    assert labels(path, label="json:class") == ([0, 1], ["tench", "Ärger"])
    assert labels(path) == ([0, 1], ["d", "e"])  # only "label" and "cls" are found automatically


def test_tars_that_store_labels_differently_use_a_place_that_all_have(tmp_path: Path) -> None:
    plant(tmp_path / "a.tar", {"x/0": {"cls": b"1"}})
    plant(tmp_path / "b.tar", {"y/0": {"txt": b"1"}})
    assert labels(tmp_path, label="folder") == ([0, 1], ["x", "y"])


# ---- names ----


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["b/0.jpg", "a/1.jpg", "b/2.jpg"], ["b", "a", "b"]),
        (["train/b/0.jpg", "train/a/x/1.jpg", "train/b/y/2.jpg"], ["b", "a", "b"]),
        (["./b/0.jpg", "./a/1.jpg"], ["b", "a"]),
        (["./images/0.jpg", "./images/1.jpg"], ["images", "images"]),
        (["10/0.jpg", "9/1.jpg"], ["10", "9"]),
        (["a/0.jpg", "1.jpg", "b/2.jpg"], ["a", None, "b"]),
        (["t/0.jpg", "t/a/1.jpg"], [None, "a"]),
        (["0.jpg", "./1.jpg"], None),
    ],
)
def test_folders_are_classes(names: list[str], classes: list[str | None] | None) -> None:
    found = folder_labels([name.encode() for name in names])
    assert (None if found is None else [None if f is None else f.decode() for f in found]) == classes


def test_folders_are_numbered_as_in_an_image_folder(tmp_path: Path) -> None:
    names = ["10", "9", "b", "C", "\u00e9", "\udcff", "\U0001f600"]
    path = plant(tmp_path / "x.tar", {f"top/{name}/{i}": {} for i, name in enumerate(names)})
    folder = tmp_path / "folder"
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "0.jpg").write_bytes(PHOTO)
    assert labels(path)[1] == list(map(os.fsdecode, open_source(folder).classes))
    assert labels(path)[0] == [labels(path)[1].index(name) for name in names]


def test_images_next_to_the_folders_are_counted_with_a_warning(tmp_path: Path) -> None:
    files = [(name, photo(number)) for number, name in enumerate(["a/0.jpg", "1.jpg", "b/2.jpg"])]
    path = write_tar(tmp_path / "x.tar", files)
    with pytest.warns(
        UserWarning, match=r"x.tar': left out: 1 image next to class folders \('1.jpg'\); move them .* label="
    ):
        assert labels(path) == ([0, 1], ["a", "b"])
    with pytest.warns(UserWarning, match="left out"):
        source = open_source(path)
    assert source.skipped == {"next to class folders": 1}
    assert [(source.path(i)[-7:], source.read(i)) for i in (0, 1)] == [(b"a/0.jpg", photo(0)), (b"b/2.jpg", photo(2))]


def test_folders_that_are_parts_of_the_data_warn(tmp_path: Path) -> None:
    names = ["data/train/a/0.jpg", "data/train/b/1.jpg", "data/val/a/0.jpg"]
    path = write_tar(tmp_path / "x.tar", [(name, PHOTO) for name in names])
    for _ in range(2):  # also from the saved index
        with pytest.warns(UserWarning, match="x.tar': its classes are 'train' and 'val': write one tar for each"):
            assert labels(path) == ([0, 0, 1], ["train", "val"])
    assert labels(path, label="folder") == ([0, 0, 1], ["train", "val"])


def test_tars_without_any_labels_are_one_class(tmp_path: Path) -> None:
    path = plant(tmp_path / "n01.tar", {"0": {}, "1": {}})
    assert labels(path) == ([0, 0], ["."])
    assert labels(path, classes=["cat", "dog"]) == ([0, 0], ["cat", "dog"])


def test_each_tar_can_be_a_class(tmp_path: Path) -> None:
    for name in ("n02", "n01"):
        plant(tmp_path / f"{name}.tar", {f"{name}_{i}": {} for i in range(2)})
    assert labels(tmp_path, label="shard") == ([0, 0, 1, 1], ["n01", "n02"])
    assert labels(str(tmp_path / "{n02,n01}.tar"), label="shard") == ([1, 1, 0, 0], ["n01", "n02"])


# ---- tables ----

SAMPLES: dict[str, dict[str, bytes]] = {"a/0": {"cls": b"9"}, "a/1": {}, "./b/2": {}}


@pytest.mark.parametrize(
    "text",
    [
        "a/0,dog\na/1,cat\nb/2,dog\nunused,cow\n",
        "a/0\tdog\r\na/1\tcat\r\n\r\nb/2\tdog\r\n",
        'label,other,key\ndog,1,a/0\ncat,"2,3",a/1\ndog,4,./b/2\n',
        "a/0.jpg,dog\na/1.jpg,cat\n./b/2.jpg,dog\n",
        "split,Key, Label\ntrain,a/0,dog\ntrain,a/1,cat\nval,b/2,dog\n",
    ],
)
def test_labels_come_from_a_table_in_a_file(tmp_path: Path, text: str) -> None:
    path = plant(tmp_path / "x.tar", SAMPLES)
    table = tmp_path / "labels.txt"
    table.write_text(text)
    assert labels(path, label=table) == labels(path, label=str(table)) == ([1, 0, 1], ["cat", "dog"])


def test_labels_come_from_a_dict(tmp_path: Path) -> None:
    path = plant(tmp_path / "x.tar", SAMPLES)
    assert labels(path, label={"a/0": 3, b"a/1": 0, "b/2": 3}) == ([3, 0, 3], ["0", "1", "2", "3"])
    assert labels(path, label={"a/0": "x", b"a/1": b"w", "b/2": "x"}, classes=["x", "w"]) == ([0, 1, 0], ["x", "w"])


@pytest.mark.parametrize(
    ("values", "expected", "classes"),
    [
        ([torch.tensor(10), np.int64(9), torch.tensor(9)], [10, 9, 9], [str(number) for number in range(11)]),
        ([{"b", "a"}, ("a",), np.array(["b"])], [[1, 1], [1, 0], [0, 1]], ["a", "b"]),
        ([(0, 1), np.array([2, 3]), [np.float32(0.5), 1]], [[0, 1], [2, 3], [0.5, 1]], []),
        ([np.bool_(True), False, True], [1, 0, 1], ["False", "True"]),
    ],
)
def test_values_of_dicts_are_read_like_labels_in_lists(
    tmp_path: Path, values: Any, expected: Any, classes: Any
) -> None:
    path = plant(tmp_path / "x.tar", SAMPLES)
    assert labels(path, label=dict(zip(("a/0", "a/1", "b/2"), values, strict=True))) == (expected, classes)
    paths = [str(tmp_path / f"{number}.jpg") for number in range(3)]
    for name in paths:
        Path(name).write_bytes(PHOTO)
    assert labels((paths, values)) == (expected, classes)


def test_a_key_in_two_forms_with_the_same_label_is_accepted(tmp_path: Path) -> None:
    path = plant(tmp_path / "a.tar", {"000": {}, "a01": {}})
    assert labels(path, label={"000": 1, "000.jpg": 1, "a01": 0})[0] == [1, 0]


def test_labels_of_json_members_are_names_or_numbers(tmp_path: Path) -> None:
    for name, values, expected in (
        ("names", ["cat", "dog", "cat"], ([0, 1, 0], ["cat", "dog"])),
        ("digits", ["10", 2, "2"], ([10, 2, 2], [str(number) for number in range(11)])),
    ):
        samples = {str(i): {"json": json.dumps({"label": value}).encode()} for i, value in enumerate(values)}
        path = plant(tmp_path / f"{name}.tar", samples)
        assert labels(path) == labels(path, label="json:label") == expected
    samples = {str(i): {"json": json.dumps({"label": value}).encode()} for i, value in enumerate([0.5, 1, 2.0])}
    source: Any = open_source(plant(tmp_path / "floats.tar", samples))
    assert source.targets([0, 1, 2]).tolist() == [0.5, 1.0, 2.0]


def test_a_tar_without_labels_is_left_out_on_request(tmp_path: Path) -> None:
    plant(tmp_path / "a.tar", {"0": {"cls": b"1"}})
    plant(tmp_path / "b.tar", {"1": {}, "2": {}})
    with pytest.warns(UserWarning, match=r"left out: 2 samples without a label \('1.jpg'\)"):
        assert len(open_source(tmp_path, missing_labels="leave_out")) == 1


@pytest.mark.parametrize(
    ("suffix", "contents", "left"),
    [
        ("cls", [b"2", None, b"", b"-1", b"0"], [2, 0]),
        ("json", [b'{"label": "cat"}', b'{"label": null}', b"{}", b'{"label": ""}', b'{"label": "dog"}'], [0, 1]),
        ("json", [b'{"label": 1}', b'{"label": NaN}', None, b'{"label": -1}', b'{"label": 1}'], [1, 1]),
        ("json", [b'{"label": [0.5, 1]}', b'{"label": null}', None, b"{}", b'{"label": [1, 2]}'], [[0.5, 1], [1, 2]]),
        ("table", [b"a", b"", None, None, b"b"], [0, 1]),
    ],
)
def test_samples_without_a_label_are_left_out_on_request(
    tmp_path: Path, suffix: str, contents: list[bytes | None], left: list[Any]
) -> None:
    path = plant(tmp_path / "x.tar", {str(i): {suffix: c} if c is not None else {} for i, c in enumerate(contents)})
    table = {str(i): c for i, c in enumerate(contents) if c is not None} if suffix == "table" else None
    refusal_of(path, label=table)
    for _ in range(2):  # scanned, then from the saved index
        with pytest.warns(UserWarning, match=r"left out: 3 samples without a label \('1.jpg'\)"):
            source: Any = open_source(path, label=table, missing_labels="leave_out")
    assert [source.path(i)[-6:] for i in (0, 1)] == [b":0.jpg", b":4.jpg"]
    assert (source.targets([0, 1]) if isinstance(left[0], list) else source.labels([0, 1])).tolist() == left
    assert source.skipped["sample without a label"] == 3


def test_a_sample_without_one_of_several_labels_is_left_out(tmp_path: Path) -> None:
    members = [{"cls": b"1", "json": b'{"age": 3}'}, {"cls": b"0", "json": b"{}"}, {"cls": b"", "json": b'{"age": 4}'}]
    path = plant(tmp_path / "x.tar", {str(i): each for i, each in enumerate(members)})
    assert refusal_of(path, label=["cls", "json:age"]).path.endswith(b":2.jpg")
    with pytest.warns(UserWarning, match="left out: 2 samples without a label"):
        source: Any = open_source(path, label=["cls", "json:age:float"], missing_labels="leave_out")
    assert {name: found.tolist() for name, found in source.targets([0]).items()} == {"cls": [1], "age": [3.0]}


def test_integers_are_served_as_floats_on_request(tmp_path: Path) -> None:
    members = {str(i): {"cls": b"%d" % i, "json": b'{"age": %d}' % (i * 10)} for i in range(3)}
    path = plant(tmp_path / "x.tar", members)
    for label, expected in (("json:age:float", [0.0, 10.0, 20.0]), ("cls:float", [0.0, 1.0, 2.0])):
        found = open_source(path, label=label).targets([0, 1, 2])  # type: ignore[attr-defined]
        assert (found.dtype, found.tolist()) == ("float32", expected)


def test_booleans_of_json_members_are_class_names(tmp_path: Path) -> None:
    samples = {str(i): {"json": json.dumps({"label": i == 1}).encode()} for i in range(3)}
    assert labels(plant(tmp_path / "x.tar", samples)) == ([0, 1, 0], ["False", "True"])
