"""open_source: which data becomes which source, and what is said of the rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from folder_trees import plant

from penstock.loaders.open_source import FileKind, open_source
from penstock.loaders.sources.arrays import ArraySource
from penstock.loaders.sources.contract import Source
from penstock.loaders.sources.image_folder import ImageFolder
from penstock.pipelines.errors import LoaderError

IMAGES, LABELS = np.zeros((2, 4, 4, 3), np.uint8), [0, 1]


def test_folders_by_any_kind_of_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, ["c/1.jpg"])
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, str(tmp_path), os.fsencode(tmp_path), ".", str(tmp_path) + "//"):
        source = open_source(path)
        assert isinstance(source, ImageFolder)
        assert source.path(0) == os.fsencode(tmp_path / "c" / "1.jpg")


@pytest.mark.parametrize("pair", [(IMAGES, LABELS), [IMAGES, LABELS], (torch.from_numpy(IMAGES), torch.tensor(LABELS))])
def test_pairs_of_arrays(pair) -> None:
    assert isinstance(open_source(pair), ArraySource)


def test_a_source_is_returned_as_it_is(tmp_path: Path) -> None:
    for source in (ImageFolder(plant(tmp_path, ["c/1.jpg"])), ArraySource(IMAGES, LABELS)):
        assert isinstance(source, Source)
        assert open_source(source) is source
        with pytest.raises(TypeError, match="no options, got rescan"):
            open_source(source, rescan=True)


def test_options_reach_the_source(tmp_path: Path) -> None:
    plant(tmp_path, ["c/1.jpg", "d/"])
    with pytest.raises(LoaderError, match="E-EMPTYCLASS"):
        open_source(tmp_path)
    assert open_source(tmp_path, allow_empty=True).classes == (b"c", b"d")
    assert open_source((IMAGES, LABELS), classes=["a", "b"]).classes == (b"a", b"b")
    with pytest.raises(ValueError, match="has no option shuffle"):
        open_source(tmp_path, shuffle=True)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LoaderError) as caught:
        open_source(tmp_path / "absent\xff")
    assert caught.value.code == "E-NODATA"
    assert caught.value.path == os.fsencode(tmp_path / "absent\xff")


def test_a_file_of_no_known_kind_names_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.xyz").write_bytes(b"")
    kinds = r".*a folder of images, or an HDF5 cache \(\.h5, \.hdf5\)"
    with pytest.raises(ValueError, match=rf"data\.xyz' is not a source: pass {kinds}"):
        open_source(tmp_path / "data.xyz")
    monkeypatch.setattr(
        sys.modules["penstock.loaders.open_source"],
        "FILE_KINDS",
        [FileKind("a zip", (".zip",), lambda paths, **options: (paths, options))],
    )
    with pytest.raises(ValueError, match=r"a zip \(\.zip\)"):
        open_source(tmp_path / "data.xyz")
    (tmp_path / "data.ZIP").write_bytes(b"")
    assert open_source(tmp_path / "data.ZIP", split=1) == ([os.fsencode(tmp_path / "data.ZIP")], {"split": 1})
    pattern = str(tmp_path / "{b,a}-{08..10}.zip")
    names = [f"{letter}-{number}.zip" for letter in "ba" for number in ("08", "09", "10")]
    assert open_source(pattern) == ([os.fsencode(tmp_path / name) for name in names], {})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (None, "check the variable"),
        (7, r"a path, a URL.*a pair \(images, labels\)"),
        ({"images": IMAGES}, "a pair"),
        (torch.utils.data.TensorDataset(torch.zeros(1)), r"penstock\.loaders\.DataLoader"),
    ],
)
def test_other_objects_say_what_is_possible(spec, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        open_source(spec)
