"""Photos in class folders, and the same photos as a data set."""

from __future__ import annotations

from typing import Any

import pytest
from photo_folder import write_folder
from photo_tables import photo_table

from penstock.loaders.data.files.image_folder import ImageFolder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photos") / "photos", 61))


@pytest.fixture(scope="session")
def dataset(folder: ImageFolder) -> Any:
    """A `datasets.Dataset` of the photos, in memory, with row numbers."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    classes = [name.decode() for name in folder.classes]
    described = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=classes),
        "number": datasets.Value("int64"),
    }
    rows = photo_table(folder).to_pydict()
    return datasets.Dataset.from_dict(rows, features=datasets.Features(described))
