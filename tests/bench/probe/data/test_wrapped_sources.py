"""A small data set served as a large one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from cache_files import pixel_item, write_cache
from photo_folder import write_folder

from penstock.bench.probe.data.wrapped_sources import repeat_source, sample_of
from penstock.loaders import create_loader, open_source
from penstock.loaders.data.sources.contract import Source, is_cache, is_located
from penstock.loaders.data.sources.data import Data
from penstock.pipelines import imagenet_train
from penstock.pipelines.native.rows import ROW

PIXELS = [np.full((30, 40, 3), value, np.uint8) for value in (10, 20, 30)]


def test_images_repeat_with_their_labels(tmp_path: Path) -> None:
    source = repeat_source(open_source(write_folder(tmp_path, 6)), 20)
    assert isinstance(source, Source)
    assert not is_cache(source)
    assert len(source) == 20
    assert source.read(7) == source.read(1) == source.read(19)
    assert source.path(8) == source.path(2)
    assert source.labels(np.arange(12)).tolist() == source.labels(np.arange(6)).tolist() * 2
    assert source.fingerprint not in (
        open_source(tmp_path).fingerprint,
        repeat_source(open_source(tmp_path), 21).fingerprint,
    )
    assert source.describe().startswith("20 entries, repeating 6 images")


def test_a_sample_is_spread_over_the_data(tmp_path: Path) -> None:
    source = open_source(write_folder(tmp_path, 36))
    sample = sample_of(source, 12)
    assert [sample.path(k) for k in range(12)] == [source.path(3 * k) for k in range(12)]
    assert sample.read(5) == source.read(15)
    assert len(sample_of(source, 100)) == 36


def test_the_native_library_reads_wrapped_sources_unless_the_wrapper_overrides_reading(tmp_path: Path) -> None:
    class Slow(Data):
        def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
            return super().read(index)

    files = open_source(write_folder(tmp_path / "photos", 6))
    cache = open_source(write_cache(tmp_path / "x.h5", [pixel_item(p, label=k % 2) for k, p in enumerate(PIXELS)]))
    for source in (files, cache):
        assert is_located(repeat_source(source, 20))
        assert is_located(sample_of(source, 2))
    assert not is_located(Slow([files]))
    assert not is_located(repeat_source(Slow([files]), 30))
    rows = np.zeros(2, ROW)
    repeat_source(files, 20).locate(np.array([7, 1]), rows)
    assert rows["name"][0] == rows["name"][1]


def test_a_repeated_cache_is_still_a_cache(tmp_path: Path) -> None:
    cache = open_source(write_cache(tmp_path / "x.h5", [pixel_item(p, label=k % 2) for k, p in enumerate(PIXELS)]))
    source = repeat_source(cache, 12)
    assert is_cache(source)
    assert np.array_equal(source.read(4), cache.read(4 % len(cache)))
    with create_loader(
        source, backend="hdf5", workers=2, pipeline=imagenet_train(16), batch_size=12, with_index=True
    ) as loader:
        _, labels, index = next(iter(loader))
    assert sorted(index.tolist()) == list(range(12))
    assert labels.tolist() == [i % 3 % 2 for i in index.tolist()]
