"""Warnings show the user's line, however deep in the package their cause is."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from penstock.loaders import create_loader, open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.pipelines import imagenet_train


def test_a_warning_shows_the_line_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for name in ("cat/1.jpg", "stray.jpg"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    for use in (
        ImageFolder,
        open_source,
        lambda path: create_loader(path, batch_size=1, pipeline=imagenet_train(8), workers=0).close(),
    ):
        with pytest.warns(
            UserWarning, match="left out: 1 image next to class folders .'stray.jpg'.; move them"
        ) as caught:
            use(tmp_path)
        assert [Path(each.filename).name for each in caught] == [Path(__file__).name]
