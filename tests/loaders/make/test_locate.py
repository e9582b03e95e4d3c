"""Locations of samples: the native library fills the same rows as numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_tests import native
from photo_folder import write_folder

from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.pipelines.native import locate
from penstock.pipelines.native.rows import ELSEWHERE, FILE, PIXELS, ROW, STORED, STRIPS


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_folder(tmp_path_factory.mktemp("locate"), 40)
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))[::7]):
        (path.parent / ("deep" * (number % 3))).mkdir(exist_ok=True)
        path.rename(path.parent / ("deep" * (number % 3)) / f"{number}-{'x' * 40 * number}.jpg")
    for path in sorted(folder.rglob("*.jpg"))[::9]:
        path.write_bytes(path.read_bytes()[:300])  # a cache stores this file unchanged
    return folder


def rows_of(source: Any, indices: Any, monkeypatch: pytest.MonkeyPatch, *, natively: bool) -> Any:
    library = native() if natively else None
    monkeypatch.setattr(locate, "native_library", lambda: library)
    rows = np.zeros(len(indices), ROW)
    names = source.locate(indices, rows)
    assert names is source.locate(indices, rows.copy())  # the library reads the names once
    return rows


def check(source: Any, kinds: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare both ways; both must refuse an index beyond the last image."""
    indices = np.random.default_rng(0).permutation(len(source))
    found, expected = (rows_of(source, indices, monkeypatch, natively=natively) for natively in (True, False))
    assert np.array_equal(found, expected)
    assert set(found["kind"].tolist()) == kinds
    assert len(np.unique(found["name" if FILE in kinds else "offset"])) >= len(source) // 2  # shards share offsets
    for natively in (True, False):
        with pytest.raises(IndexError):
            rows_of(source, np.array([0, len(source)]), monkeypatch, natively=natively)


def test_files_are_located_as_in_python(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(ImageFolder(photos), {FILE}, monkeypatch)
    sizes = sorted(path.stat().st_size for path in photos.rglob("*.jpg"))
    check(ImageFolder(photos, max_file_bytes=sizes[20]), {FILE, ELSEWHERE}, monkeypatch)


@pytest.mark.parametrize(
    ("kind", "shards", "kinds"),
    [("jpeg", 1, {STORED, STRIPS}), ("raw", 1, {PIXELS, STORED}), ("jpeg", 3, {STORED, STRIPS})],
)
def test_images_of_a_cache_are_located_as_in_python(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shards: int, kinds: set[int]
) -> None:
    build_cache(ImageFolder(photos), tmp_path / "cache", Encoding(kind=kind), workers=0, shards=shards)
    check(open_cache(tmp_path / "cache"), kinds, monkeypatch)
