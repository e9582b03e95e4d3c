"""A cache after its source or settings changed: builder, loader and check refuse it; the builder may replace it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folder_trees import flip_a_bit, rewrite_keeping_mtime, swap_names
from photo_folder import photo, write_folder

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.cache_build import freshness
from penstock.loaders.cache_build.build import BuiltCache, build_cache
from penstock.loaders.cache_build.verify import refuse_other_source
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.pipelines import imagenet_eval

COUNT = 12


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos` and their cache `x.h5`."""
    folder = tmp_path_factory.mktemp("cached")
    build_cache(ImageFolder(write_folder(folder / "photos", COUNT)), folder / "x.h5", workers=0)
    return folder


def load(folder: Path, **options: Any) -> int:
    with create_loader(
        folder / "photos", backend="hdf5", cache=folder / "x.h5", workers=0, pipeline=imagenet_eval(32), **options
    ) as loader:
        return sum(len(labels) for _, labels in loader)


def build(folder: Path, encoding: Encoding | None = None, **options: Any) -> BuiltCache:
    return build_cache(ImageFolder(folder / "photos", rescan=True), folder / "x.h5", encoding, workers=0, **options)


def stale(action: Callable[[], object]) -> LoaderError:
    with pytest.raises(LoaderError, match="E-STALE") as caught:
        action()
    assert caught.value.exit_code == 4
    return caught.value


# Change of the source -> (action, message of the cache check).
MUTATIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an image was removed": (lambda root: (root / "class0" / "0000.jpg").unlink(), "the source has 11 images"),
    "an image was added": (
        lambda root: (root / "class0" / "9999.jpg").write_bytes(photo(5)),
        "13 images, the cache 12",
    ),
    "a class was removed": (lambda root: shutil.rmtree(root / "class1"), "the source has 8 images"),
    "a class was renamed": (
        lambda root: (root / "class2").rename(root / "class3"),
        "class 2 is called 'class3' in the source, 'class2' in the cache",
    ),
    "two classes swapped names": (
        lambda root: swap_names(root / "class0", root / "class1"),
        "image 0 is 'class0/0001.jpg' in the source",
    ),
    "an image moved to another class": (
        lambda root: (root / "class0" / "0000.jpg").rename(root / "class1" / "0000.jpg"),
        "image 0 is 'class0/0003.jpg' in the source, 'class0/0000.jpg' in the cache",
    ),
    "two images swapped names": (
        lambda root: swap_names(root / "class0" / "0000.jpg", root / "class0" / "0003.jpg"),
        "size",
    ),
    "one byte more, same mtime": (
        lambda root: rewrite_keeping_mtime(
            root / "class0" / "0000.jpg", (root / "class0" / "0000.jpg").read_bytes() + b"\0"
        ),
        "changed in size since the cache was built",
    ),
    "same size, later mtime": (
        lambda root: (root / "class1" / "0001.jpg").write_bytes(flip_a_bit(root / "class1" / "0001.jpg")),
        "modified since the cache was built",
    ),
    "an earlier mtime": (
        lambda root: os.utime(root / "class1" / "0004.jpg", ns=(1, 1)),
        "modified since the cache was built",
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_changed_source_is_refused(cached: Path, tmp_path: Path, mutation: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(cached, folder)
    before = (folder / "x.h5").read_bytes()
    mutate, text = MUTATIONS[mutation]
    mutate(folder / "photos")
    stale(lambda: load(folder))
    assert "source" in stale(lambda: build(folder)).cause
    cache, source = open_cache(folder / "x.h5"), ImageFolder(folder / "photos", rescan=True)
    assert text in str(stale(lambda: refuse_other_source(cache, source)))
    assert (folder / "x.h5").read_bytes() == before
    assert sorted(os.listdir(folder)) == ["photos", "x.h5"]


def test_a_cache_serves_a_copy_of_its_source(cached: Path, tmp_path: Path) -> None:
    shutil.copytree(cached, tmp_path / "copy")  # including the mtimes
    assert build(tmp_path / "copy").files[0].built == 0
    assert load(tmp_path / "copy") == COUNT


def test_a_cache_serves_a_copy_of_its_parquet_files(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "here").mkdir()
    for part in ("0", "1"):
        table = pa.table({"image": [photo(number) for number in range(COUNT)], "label": list(range(COUNT))})
        parquet.write_table(table, tmp_path / "here" / f"{part}.parquet")
    shutil.copytree(tmp_path / "here", tmp_path / "copy")  # including the mtimes

    def serve(folder: str) -> int:
        cache = {"backend": "hdf5", "cache": tmp_path / "x.h5"}
        with create_loader(
            str(tmp_path / folder / "*.parquet"), workers=0, pipeline=imagenet_eval(32), **cache
        ) as loader:
            return sum(len(labels) for _, labels in loader)

    assert serve("here") == serve("copy") == 2 * COUNT
    os.utime(tmp_path / "copy" / "1.parquet", ns=(1, 1))
    stale(lambda: serve("copy"))


@pytest.mark.parametrize(
    "encoding",
    [
        Encoding(kind="raw"),
        Encoding(quality=90),
        Encoding(resize=64),
        Encoding(resize=64, longer_side=True),
        Encoding(kind="raw", resize=64),
    ],
    ids=Encoding.describe,
)
def test_a_cache_with_other_settings_is_refused(cached: Path, encoding: Encoding) -> None:
    stale(lambda: load(cached, encoding=encoding))
    assert encoding.describe() in stale(lambda: build(cached, encoding)).cause


def test_a_cache_with_other_settings_is_replaced_with_replace_stale(cached: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(cached, folder)
    assert build(folder, Encoding(quality=80), replace_stale=True).files[0].built == COUNT
    stale(lambda: build(folder))


@pytest.mark.parametrize("library", ["simplejpeg", "torch"])
def test_pixels_of_another_library_are_stale_and_coefficients_are_not(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    shutil.copytree(cached / "photos", tmp_path / "photos")
    raw = Encoding(kind="raw", resize=32)
    assert load(tmp_path, encoding=raw)
    known = freshness.build_versions()
    monkeypatch.setattr(freshness, "build_versions", lambda: {**known, library: "99.1"})
    with pytest.raises(LoaderError, match=f"E-STALE.*{library}"):
        load(tmp_path, encoding=raw)
    assert library in stale(lambda: build(tmp_path, raw)).cause
    assert build(cached).files[0].built == 0
