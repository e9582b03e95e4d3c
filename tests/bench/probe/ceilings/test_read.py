"""Read ceilings: the images read, their origin, and rates that are not of storage."""

from __future__ import annotations

import os
from pathlib import Path

import native_tests
import numpy as np
import pytest
from cache_files import pixel_item, write_cache
from photo_folder import write_folder
from tar_files import pack_folder

from penstock.bench.probe.ceilings import read as read_ceilings
from penstock.bench.probe.ceilings.read import FileRange, ReadCeiling, bytes_an_image, drop_cached, file_ranges
from penstock.bench.probe.data.wrapped_sources import repeat_source
from penstock.loaders import create_loader, open_source
from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache, open_cache
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.make import native_rows
from penstock.pipelines import imagenet_train

COUNT = 40


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_folder(tmp_path_factory.mktemp("photos"), COUNT)
    for path in folder.rglob("*.jpg"):  # pages that are not yet on the disk cannot be dropped
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return folder


@pytest.fixture(scope="module")
def cache(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Hdf5Cache:
    path = tmp_path_factory.mktemp("cache") / "x.h5"
    create_loader(photos, backend="hdf5", cache=path, batch_size=8, workers=0).close()
    return open_cache(path)


class Counted:
    """Counts the images read by methods of a source's class."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> None:
        self.indices: list[int] = []
        plain = getattr(kind, method)
        monkeypatch.setattr(kind, method, lambda of, i, *more: (self.indices.append(i), plain(of, i, *more))[1])


def test_good_images_are_read_in_turn(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(photos)
    os.rename(source.path(3), source.path(3) + b".away")
    ceiling = ReadCeiling(source, imagenet_train(32), 0)
    os.rename(source.path(3) + b".away", source.path(3))
    counted = Counted(monkeypatch, ImageFolder, "read")
    assert ceiling.warm(0.05).images > COUNT
    assert counted.indices[:50] == [*(i for i in range(COUNT) if i != 3), *range(3), *range(4, 12)]


def test_the_native_library_reads_only_the_needed_parts_of_a_cache(
    cache: Hdf5Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = native_tests.native()
    whole = Counted(monkeypatch, Hdf5Cache, "read")
    for there in (library, None):
        monkeypatch.setattr(native_rows, "native_library", lambda there=there: there)
        ceiling = ReadCeiling(repeat_source(cache, 200), imagenet_train(32), 0)
        assert ceiling.possible
        assert ceiling.warm(0.02).images >= 1
        assert set(whole.indices) == (set() if there else set(range(COUNT)))
        assert ceiling.many(0.02).images >= COUNT


@pytest.mark.parametrize("kind", ["files", "cache", "repeated"])
def test_file_ranges_contain_the_bytes_of_images(photos: Path, cache: Hdf5Cache, kind: str) -> None:
    source = cache if kind == "cache" else open_source(photos)
    extents = list(file_ranges(source, [0, 7, 39]))
    assert len(extents) == 3
    for index, (path, offset, num_bytes) in zip((0, 7, 39), extents, strict=True):
        stored = cache.stored(index) if kind == "cache" else source.read(index)
        with open(path, "rb") as file:
            file.seek(offset)
            assert file.read(num_bytes) == stored
    assert list(file_ranges(repeat_source(source, 80), [79])) == list(file_ranges(source, [79 % len(source)]))


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([0, 0], r"^0\.\d MB were dropped .* 0\.0 MB were read from storage again"),
        ([None, None], "this kernel does not report"),
    ],
)
def test_a_rate_that_is_not_of_storage_is_refused(
    photos: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int | None], words: str
) -> None:
    monkeypatch.setattr(read_ceilings, "storage_bytes", counts.pop)
    with pytest.raises(ValueError, match=words):
        ReadCeiling(open_source(photos), imagenet_train(32), 0).cold(0.01)


def test_enough_bytes_from_storage_are_accepted(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 10**9])
    monkeypatch.setattr(read_ceilings, "storage_bytes", lambda: next(counts))
    dropped: list[int] = []
    monkeypatch.setattr(read_ceilings, "drop_cached", lambda extents: dropped.append(len(extents)))
    rate = ReadCeiling(open_source(photos), imagenet_train(32), 0).cold(1e-9)
    assert dropped == [COUNT]
    assert rate.images == COUNT


def test_arrays_have_nothing_to_read() -> None:
    arrays = open_source((np.zeros((5, 8, 8, 3), np.uint8), np.arange(5)))
    assert not ReadCeiling(arrays, imagenet_train(32), 0).possible
    assert bytes_an_image(arrays) is None
    with pytest.raises(ValueError, match="positions of the images in their files are unknown"):
        ReadCeiling(arrays, imagenet_train(32), 0).cold(0.01)


def test_the_positions_of_tar_members_are_known(photos: Path, tmp_path: Path) -> None:
    files = open_source(photos)
    paths = [Path(os.fsdecode(files.path(index))) for index in range(COUNT)]
    source = open_source(pack_folder(tmp_path / "x.tar", photos, [str(path.relative_to(photos)) for path in paths]))
    for index, (path, offset, num_bytes) in enumerate(file_ranges(source, list(range(COUNT)))):
        with open(path, "rb") as file:
            file.seek(offset)
            assert file.read(num_bytes) == paths[index].read_bytes()
    assert index == COUNT - 1
    assert bytes_an_image(source) == bytes_an_image(files)
    assert ReadCeiling(source, imagenet_train(32), 0).possible


def test_bytes_per_image_are_those_on_disk(photos: Path, cache: Hdf5Cache, tmp_path: Path) -> None:
    total = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert bytes_an_image(repeat_source(open_source(photos), 99)) == total // COUNT
    assert bytes_an_image(cache) == sum(len(cache.stored(i)) for i in range(COUNT)) // COUNT
    pixels = open_cache(write_cache(tmp_path / "p.h5", [pixel_item(np.zeros((30, 40, 3), np.uint8), label=0)]))
    assert 3600 <= (bytes_an_image(pixels) or 0) < 3700


def test_neighbours_are_dropped_together_and_missing_files_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = os.fsencode(tmp_path / "x")
    Path(os.fsdecode(path)).write_bytes(bytes(100_000))
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, offset, length, advice: asked.append((offset, length)))
    drop_cached([FileRange(path, *at) for at in ((5000, 3000), (8000, 4000), (5000, 3000), (50_000, 10))])
    page = os.sysconf("SC_PAGE_SIZE")
    assert asked == [(5000 // page * page, 8192), (50_000 // page * page, page)] or page != 4096
    drop_cached([FileRange(b"/none", 0, 10)])
    assert len(asked) == 2
