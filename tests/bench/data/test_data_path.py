"""DataPath: URLs keep their text, everything else is a path as any other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.bench.data.data_path import DataPath
from penstock.bench.data.training_folder import training_folder


@pytest.mark.parametrize("url", ["s3://bucket/train-{0..9}.tar", "https://host:8/a//b.tar", "hf://datasets/x/y.tar"])
def test_a_url_keeps_its_text(url: str) -> None:
    path = DataPath(url)
    assert str(path) == os.fspath(path) == url
    assert isinstance(path, Path)
    assert training_folder(path) is path


def test_other_paths_are_paths(tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
    path = DataPath(str(tmp_path) + "//")
    assert path == tmp_path
    assert str(path) == str(tmp_path)
    assert training_folder(path) == tmp_path / "train"
    assert os.fspath(path / "a" / "b") == os.path.join(tmp_path, "a", "b")
