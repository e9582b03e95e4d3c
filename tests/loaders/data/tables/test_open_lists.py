"""Lists in memory as sources: accepted forms, and similar values that are not lists of images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folder_trees import plant
from photo_folder import write_folder

from penstock.loaders import create_loader
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.errors import LoaderError

NAMES = ["b/2.jpg", "a/1.jpg", "a/3.PNG"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(plant(tmp_path / "tree", NAMES))
    return tmp_path / "tree"


class Frame:
    """The interface that pandas and polars share."""

    def __init__(self, **columns: Any) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


class TorchvisionFolder:
    """The attributes of torchvision's DatasetFolder, in its order."""

    transform: Any = None
    target_transform: Any = None

    def __init__(self, root: Path) -> None:
        self.classes: list[Any] = ["a", "b"]
        self.samples = [(str(root / name), int(name[0] == "b")) for name in sorted(NAMES)]

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("images are read from their files")


def rows_of(source: Any) -> tuple[list[str], list[int], list[str]]:
    assert isinstance(source, IndexedSource)
    names = [source.read(n).decode() for n in range(len(source))]
    return names, source.labels(np.arange(len(source))).tolist(), list(map(os.fsdecode, source.classes))


NAMED = (NAMES, [1, 0, 0], ["a", "b"])
NUMBERED = (NAMES, [1, 0, 0], ["0", "1"])
FORMS: dict[str, tuple[Any, tuple[list[str], list[int], list[str]]]] = {
    "pairs": (list(zip(NAMES, "baa", strict=True)), NAMED),
    "pairs in a tuple": (tuple(zip(NAMES, [1, 0, 0], strict=True)), NUMBERED),
    "pairs that are lists, of paths": ([[Path(name), n] for name, n in zip(NAMES, [1, 0, 0], strict=True)], NUMBERED),
    "one pair": ([(NAMES[0], 1)], (NAMES[:1], [1], ["0", "1"])),
    "two pairs with names": ([(NAMES[0], "b"), (NAMES[1], "a")], (NAMES[:2], [1, 0], ["a", "b"])),
    "two pairs in a tuple": (((NAMES[0], 1), (NAMES[1], 0)), (NAMES[:2], [1, 0], ["0", "1"])),
    "two columns": ((NAMES, [1, 0, 0]), NUMBERED),
    "two columns in a list": ([NAMES, ["b", "a", "a"]], NAMED),
    "two columns of two": ((NAMES[:2], ["b", "a"]), (NAMES[:2], [1, 0], ["a", "b"])),
    "two columns of two in a list": ([NAMES[:2], [1, 0]], (NAMES[:2], [1, 0], ["0", "1"])),
    "arrays": ((np.array(NAMES), np.array([1, 0, 0])), NUMBERED),
    "a tensor of labels": ((NAMES, torch.tensor([1, 0, 0])), NUMBERED),
    "paths": (NAMES, (NAMES, [0, 0, 0], ["."])),
    "two paths": ([NAMES[0], os.fsencode(NAMES[1])], (NAMES[:2], [0, 0], ["."])),
    "a data frame": (Frame(width=[1, 1, 1], path=NAMES, label=["b", "a", "a"]), NAMED),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_list_is_opened(tree: Path, form: str) -> None:
    spec, expected = FORMS[form]
    assert rows_of(open_source(spec)) == expected


def test_options_apply_to_lists_and_frames(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    pairs = list(zip(NAMES, "baa", strict=True))
    assert rows_of(open_source(pairs, root=tree, classes=["b", "c", "a"])) == (NAMES, [0, 2, 2], ["b", "c", "a"])
    frame = Frame(where=NAMES, what=["b", "a", "a"], label=[5, 5, 5])
    assert rows_of(open_source(frame, image="where", label="what", root=tree)) == NAMED
    with pytest.raises(ValueError, match=r"no column of the data frame .* 'where', 'what', 'label'"):
        open_source(frame, root=tree)


@pytest.mark.parametrize("pattern", ["**/*.*", "{a,b}/*", "[ab]/*.[jP]*"])
def test_a_pattern_names_classes_by_folders(tree: Path, pattern: str) -> None:
    found = open_source(tree / pattern)
    assert rows_of(found) == (["a/1.jpg", "a/3.PNG", "b/2.jpg"], [0, 0, 1], ["a", "b"])
    folder = ImageFolder(tree)
    assert (found.classes, [found.path(n) for n in range(3)]) == (folder.classes, [folder.path(n) for n in range(3)])


def test_a_pattern_over_the_parts_of_the_data_warns(tmp_path: Path) -> None:
    plant(tmp_path, ["train/1.jpg", "val/1.jpg"])
    with pytest.warns(UserWarning, match="^the pattern: its classes are 'train' and 'val'"):
        open_source(tmp_path / "*/*.jpg")
    assert open_source(tmp_path / "*/*.jpg", classes=["train", "val"]).classes == (b"train", b"val")


def test_a_pattern_within_one_folder_is_one_class(tree: Path) -> None:
    assert rows_of(open_source("a/*")) == (["a/1.jpg", "a/3.PNG"], [0, 0], ["."])
    assert rows_of(open_source(tree / "a" / "1.jpg")) == (["a/1.jpg"], [0], ["."])
    assert open_source("{b,a}/*", classes=["b", "a"]).labels(np.arange(3)).tolist() == [0, 1, 1]


def test_a_pattern_over_folders_of_the_same_name_is_refused(tmp_path: Path) -> None:
    plant(tmp_path, ["x/images/1.jpg", "y/images/2.jpg"])
    with pytest.raises(ValueError, match="images in 2 folders, all named 'images', have no class: pass a list"):
        open_source(tmp_path / "*" / "images" / "*.jpg")


def test_a_torchvision_folder_is_a_source(tree: Path) -> None:
    data = TorchvisionFolder(tree)
    expected = (sorted(NAMES), [0, 0, 1], ["a", "b"])
    assert rows_of(open_source(data)) == expected
    data.transform = lambda image: image
    with pytest.warns(UserWarning, match="transform is not applied: pass pipeline="):
        assert rows_of(open_source(data)) == expected
    data.classes = [("a", "an a"), ("b",)]  # as in torchvision's ImageNet
    with pytest.warns(UserWarning, match="transform"):
        assert open_source(data).classes == (b"a, an a", b"b")
    data.target_transform = lambda label: 1 - label
    with pytest.raises(ValueError, match="target_transform must be None"):
        open_source(data)


@pytest.mark.filterwarnings("ignore:.*listed several times with different labels")
def test_torchvision_labels_are_class_numbers(tree: Path) -> None:
    """For any folder names: of '0' to '11', '10' is class 2, and label 2 is not the folder '2'."""
    data: Any = TorchvisionFolder(tree)
    data.classes = sorted(map(str, range(12)))
    data.class_to_idx = {name: number for number, name in enumerate(data.classes)}
    data.samples = [(data.samples[number % 3][0], number) for number in range(12)]
    with pytest.warns(UserWarning, match="sorted as text, '11' before '2'"):
        assert rows_of(open_source(data))[1:] == (list(range(12)), data.classes)
    data.classes.pop()
    data.samples.pop()
    with pytest.warns(UserWarning, match="sorted as text"):
        assert rows_of(open_source(data))[1] == list(range(11))


@pytest.mark.parametrize(
    ("numbers", "names"),
    [({"a": 1, "b": 0}, ["b", "a"]), ({"a": 0, "b": 0}, ["a, b"]), ({"a": 0, "b": 2}, ["a", "class 1", "b"])],
)
def test_torchvision_folders_with_a_user_defined_find_classes_keep_its_classes(
    tree: Path, numbers: Any, names: list[str]
) -> None:
    data: Any = TorchvisionFolder(tree)
    data.class_to_idx = numbers
    data.samples = [(path, numbers["ab"[label]]) for path, label in data.samples]
    _, labels, classes = rows_of(open_source(data))
    assert (labels, classes) == ([label for _, label in data.samples], names)


def test_faults_of_rows_name_the_row(tree: Path) -> None:
    for spec, text in (
        ([("a/1.jpg", 0), ("a/3.PNG", 0, 1)], r"row 2: a row must be \(path, label\), got \('a/3.PNG', 0, 1\)"),
        ([("a/1.jpg", 0), "a/3.PNG"], "row 2: a row must be"),
        ([("a/1.jpg", 0), (7, 0), (8, 1)], "row 2: a path must be a string, got 7"),
        ([("a/1.jpg", 0.5), ("a/3.PNG", "x")], "row 2: label 'x' is a name, but label 0.5 of row 1 is a float"),
        (["a/1.jpg", None], "row 2: a path must be a string"),
        (Frame(path=NAMES, label=[1, None, 0]), "row 2: no label"),
    ):
        with pytest.raises(LoaderError, match=f"E-FORMAT.*{text}"):
            open_source(spec)
    with pytest.raises(ValueError, match="paths and labels must be of equal length, got 3 and 2"):
        open_source((NAMES, [0, 1]))


def test_values_that_are_not_a_list_of_images_are_refused(tree: Path) -> None:
    images = np.zeros((2, 4, 4, 3), np.uint8)
    for pair in ((images, [0, 1]), [images, [0, 1]], (torch.from_numpy(images), torch.tensor([0, 1]))):
        assert isinstance(open_source(pair), ArraySource)
    for other in ([], [("a.jpg", 1, 2)], [3, 4, 5], (), [{}, {}, {}]):
        with pytest.raises(
            ValueError,
            match=r"a source must be .*a list of|this (list|tuple) is not a source: (the list is empty|rows must be)",
        ):
            open_source(other)


@pytest.mark.filterwarnings("ignore:1 of 12 files do not exist")
@pytest.mark.parametrize("decoder", ["native", "simplejpeg"])
def test_a_missing_file_is_replaced_or_raised(tmp_path: Path, decoder: str) -> None:
    rows = [(path, path.parent.name) for path in sorted(write_folder(tmp_path / "photos", 12).rglob("*.jpg"))]
    rows[5] = (tmp_path / "none.jpg", "class0")
    settings = {"shuffle": False, "batch_size": 6, "workers": 0, "decoder": decoder}
    with (
        create_loader(rows, **settings) as loader,
        pytest.raises(LoaderError, match=r"E-MISSING\] sample=5 path=.*none"),
    ):
        list(loader)
    with create_loader(rows, on_bad_sample="replace", **settings) as loader:
        served = [batch.index.tolist() for batch in loader.batches()]
        assert served == [[0, 1, 2, 3, 4, 6], [6, 7, 8, 9, 10, 11]]
        assert [(bad.sample, bad.code) for bad in loader.ledger().bad] == [(5, "E-MISSING")]
