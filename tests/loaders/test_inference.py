"""Predictions without labels: in order, each sample once, by the path of its file."""

from __future__ import annotations

import os
import re
import runpy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_folder import photo, write_folder
from tar_files import write_tar

from penstock.loaders import concat, create_loader
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_eval

NUM_PHOTOS = 7


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photos without classes; one name is not UTF-8."""
    folder = write_folder(tmp_path_factory.mktemp("flat"), NUM_PHOTOS - 1, classes=1) / "class0"
    (folder / os.fsdecode(b"z\xff.jpg")).write_bytes(photo(0))
    return folder


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_eval(24), "batch_size": 3, "with_index": True, "workers": 0}
    return create_loader(source, **{**defaults, **settings})


def names(folder: Path) -> list[str]:
    return sorted((str(path) for path in folder.iterdir()), key=os.fsencode)


def serve(loader: Loader) -> tuple[list[str], list[int], list[int]]:
    """Return paths and labels in served order, and the sizes of the batches."""
    paths, labels, sizes = list[str](), list[int](), list[int]()
    with loader:
        for images, of_images, index in loader:
            paths += loader.paths(index)
            labels += of_images.tolist()
            sizes.append(len(images))
    return paths, labels, sizes


@pytest.mark.parametrize(
    ("backend", "form"), [*product(("torch", "hdf5"), ("folder", "list", "pattern")), ("torch", "joined")]
)
def test_paths_are_in_order_with_a_short_last_batch(flat: Path, tmp_path: Path, backend: str, form: str) -> None:
    files = names(flat)
    source: Any = {"folder": flat, "list": files, "pattern": str(flat / "*.jpg")}.get(form)
    if form == "joined":
        source = concat([files[:2], files[2:]])
    options = {"cache": tmp_path / "x.h5"} if backend == "hdf5" else {}
    paths, labels, sizes = serve(open_loader(source, backend=backend, **options))
    assert (paths, labels, sizes) == (files, [0] * NUM_PHOTOS, [3, 3, 1])
    assert Path(paths[-1]).read_bytes() == photo(0)


def test_ranks_without_padding_share_all_samples(flat: Path) -> None:
    parts = [serve(open_loader(flat, rank=rank, world_size=2, pad=False)) for rank in range(2)]
    assert sorted(parts[0][0] + parts[1][0], key=os.fsencode) == names(flat)
    assert {label for _, labels, _ in parts for label in labels} == {0}


def test_each_row_has_a_path_or_none_if_the_sample_is_bad(flat: Path, tmp_path: Path) -> None:
    """On several ranks a bad sample keeps its row, in the middle of a batch."""
    files = [Path(name) for name in names(flat)]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    source = [*files[:2], bad, *files[2:]]
    served: list[tuple[str, int]] = []
    for rank in range(2):
        with open_loader(source, rank=rank, world_size=2, on_bad_sample="replace", pad=True) as loader:
            for _, _, index in loader:
                served += zip(loader.paths(index), index.tolist(), strict=True)
    assert {(path, place) for path, place in served if path} == {
        (str(path), place) for place, path in enumerate(source) if path != bad
    }
    assert ("", -1) in served


def test_a_loader_shows_its_data_and_batch_size(flat: Path) -> None:
    with open_loader(flat) as loader:
        assert re.fullmatch(rf"<Loader of {NUM_PHOTOS} images, .*; batch_size=3>", repr(loader))


def test_padding_has_no_path(flat: Path) -> None:
    with open_loader(flat, pad=True) as loader:
        *_, (_, labels, index) = loader
        assert labels.tolist() == [0, -1, -1]
        for form in (index, index.numpy(), index.tolist()):
            assert loader.paths(form) == [names(flat)[-1], "", ""]
        with pytest.raises(IndexError):
            loader.paths([NUM_PHOTOS])


def test_paths_of_samples_in_containers_include_the_container(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.jpg", photo(0)), ("b.jpg", photo(1))])
    assert serve(open_loader(tar))[0] == [f"{tar}:a.jpg", f"{tar}:b.jpg"]
    images = np.zeros((2, 24, 24, 3), np.uint8)
    assert serve(open_loader((images, np.zeros(2, np.int64))))[0] == ["array[0]", "array[1]"]


def test_the_example_writes_predictions_to_a_table(flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the guide runs unchanged except for the folder."""
    text = (Path(__file__).parents[2] / "docs" / "guides" / "inference.md").read_text("utf-8")
    (example,) = [part for part in text.split("```")[1::2] if "predictions.csv" in part]
    example = example.removeprefix("python\n").replace('"photos"', repr(str(flat)))
    assert len(example.splitlines()) <= 16
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.py").write_text(example)
    runpy.run_path("example.py")
    lines = (tmp_path / "predictions.csv").read_bytes().decode("utf-8", "surrogateescape").splitlines()
    assert [line.rpartition(",")[0] for line in lines] == names(flat)
    assert {line.rpartition(",")[2] for line in lines} <= set("0123456789")
