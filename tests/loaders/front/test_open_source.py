"""open_source: which data becomes which source, and errors for all other data."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import penstock_here
from folder_trees import plant
from photo_folder import photo

from penstock.loaders import LoaderError
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.front.open_source import FILES, Kind, open_source

IMAGES, LABELS = np.zeros((2, 4, 4, 3), np.uint8), [0, 1]


def test_a_folder_may_be_given_by_any_kind_of_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, ["c/1.jpg"])
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, str(tmp_path), os.fsencode(tmp_path), ".", str(tmp_path) + "//", f"file://{tmp_path}"):
        source = open_source(path)
        assert isinstance(source, ImageFolder)
        assert source.path(0) == os.fsencode(tmp_path / "c" / "1.jpg")


def test_a_source_is_returned_unchanged(tmp_path: Path) -> None:
    for source in (ImageFolder(plant(tmp_path, ["c/1.jpg"])), ArraySource(IMAGES, LABELS)):
        assert isinstance(source, Source)
        assert open_source(source) is source
        with pytest.raises(TypeError, match="does not accept options, got rescan"):
            open_source(source, rescan=True)


def test_options_reach_the_source() -> None:
    assert open_source((IMAGES, LABELS), classes=["a", "b"]).classes == (b"a", b"b")


def test_an_empty_path_is_not_the_current_folder() -> None:
    done = penstock_here("iterate", "", "--dump", "dump")
    assert done.returncode == 2
    assert "the path is empty" in " ".join(done.stderr.replace("│", " ").split())


def test_an_unknown_kind_of_file_is_refused_with_the_known_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.xyz").write_bytes(b"")
    kinds = r".*a folder of images, or an HDF5 cache \(\.h5, \.hdf5\)"
    with pytest.raises(ValueError, match=rf"data\.xyz' is not a source: pass {kinds}"):
        open_source(tmp_path / "data.xyz")
    monkeypatch.setattr(
        sys.modules["penstock.loaders.front.open_source"],
        "KINDS",
        [Kind(FILES, "a zip", lambda *_: True, lambda paths, **options: (paths, options), (), (".zip",))],
    )
    with pytest.raises(ValueError, match=r"a zip \(\.zip\)"):
        open_source(tmp_path / "data.xyz")
    (tmp_path / "data.ZIP").write_bytes(b"")
    assert open_source(tmp_path / "data.ZIP", split=1) == ([os.fsencode(tmp_path / "data.ZIP")], {"split": 1})
    pattern = str(tmp_path / "{b,a}-{08..10}.zip")
    names = [f"{letter}-{number}.zip" for letter in "ba" for number in ("08", "09", "10")]
    plant(tmp_path, names)
    assert open_source(pattern) == ([os.fsencode(tmp_path / name) for name in names], {})


def test_a_pattern_with_files_that_do_not_exist_counts_them(tmp_path: Path) -> None:
    for number in (1, 3):
        (tmp_path / f"{number}.tar").write_bytes(b"")
    with pytest.raises(LoaderError, match=r"2 of the 4 files of this pattern do not exist.*0\.tar"):
        open_source(f"{tmp_path}/{{0..3}}.tar")


@pytest.mark.parametrize("value", ["iVBORw0KGgo" * 20_000, "\udcff\udcd8\udcff" * 20_000, "a/" * 50_000])
def test_image_data_instead_of_a_path_gives_a_short_message(tmp_path: Path, value: str) -> None:
    line = json.dumps({"path": value, "label": 0}, ensure_ascii=False)
    (tmp_path / "t.jsonl").write_text(f"{line}\n", errors="surrogateescape")
    frame = pd.DataFrame({"image": pd.Series([value], dtype=object), "label": [0]})
    for data in ([(value, 0)], [value], tmp_path / "t.jsonl", frame):
        with pytest.raises((LoaderError, ValueError)) as raised:
            open_source(data)
        assert len(str(raised.value)) < 1500


def test_a_list_of_frames_and_data_sets_becomes_one_source(tmp_path: Path) -> None:
    paths = [str(path) for path in (tmp_path / "a.png", tmp_path / "b.png")]
    for number, path in enumerate(paths):
        Path(path).write_bytes(photo(number))
    frames = [pd.DataFrame({"image": paths, "label": labels}) for labels in (["x", "y"], ["z", "x"])]
    sets = [pytest.importorskip("datasets").Dataset.from_pandas(frame) for frame in frames]
    for spec in (frames, tuple(frames), sets, [frames[0], sets[1]], [sets[0], open_source(frames[1])]):
        source = open_source(spec)
        assert source.classes == (b"x", b"y", b"z")
        assert source.labels(np.arange(4)).tolist() == [0, 1, 2, 0]
    source = open_source(frames, classes=["z", "y", "x"])
    assert source.labels(np.arange(4)).tolist() == [2, 1, 0, 2]
