"""A folder of photos that the tests of a module share, and a cache folder per test."""

from __future__ import annotations

from pathlib import Path

import pytest
from folder_trees import settle
from photo_folder import write_folder


@pytest.fixture(scope="module")
def photos(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NUM_PHOTOS of the module, 48 by default, in three classes."""
    return settle(write_folder(tmp_path_factory.mktemp("photos"), getattr(request.module, "NUM_PHOTOS", 48)))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where this test saves its indexes; it does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock"
