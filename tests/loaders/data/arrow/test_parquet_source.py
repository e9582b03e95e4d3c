"""Parquet files as a source: same samples as the class folder, row groups within a memory limit, changes and damage."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from photo_tables import IMAGE, assert_same_samples, photo_table, write_parquet

from penstock.loaders import Blocks, create_loader
from penstock.loaders.data.arrow.arrow_parquet import has_image_bytes
from penstock.loaders.data.arrow.parquet_source import ParquetSource
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.sources.contract import Source, is_located
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.rows import ELSEWHERE, ENCODED, ROW


@pytest.mark.parametrize(
    ("kind", "compression"), [(IMAGE, "snappy"), (pa.binary(), "none"), (pa.large_binary(), "zstd")]
)
def test_columns_of_each_image_type_equal_the_folder(
    tmp_path: Path, folder: ImageFolder, kind: pa.DataType, compression: str
) -> None:
    path = write_parquet(tmp_path / "x.parquet", photo_table(folder, kind=kind), compression=compression)
    source = open_source(path)
    assert isinstance(source, ParquetSource)
    assert isinstance(source, Source)
    assert is_located(source)
    assert_same_samples(source, folder)
    assert source.path(43) == os.fsencode(f"{path}:row 43")
    assert re.fullmatch(r"61 images, 3 classes, 0\.\d MB in 7 row groups of 1 Parquet files", source.describe())
    assert source.block_sizes().tolist() == [10] * 6 + [1]


def test_groups_are_decoded_once_while_they_fit(
    tmp_path: Path, folder: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "x.parquet", photo_table(folder))
    source = ParquetSource([bytes(path)])
    for index in (*range(61), *range(61)):
        source.read(index)
    assert source._cache.loads == 7
    assert 0 < source._cache._num_bytes < 2 * folder.num_bytes
    small = ParquetSource([bytes(path)], cache_bytes=1)
    for index in (0, 1, 12, 13, 2):
        small.read(index)
    assert (small._cache.loads, small._cache.evictions) == (3, 2)


def test_images_are_located_in_memory_for_the_native_library(tmp_path: Path, folder: ImageFolder) -> None:
    path = write_parquet(tmp_path / "x.parquet", photo_table(folder))
    source = ParquetSource([bytes(path)], max_file_bytes=1500)
    rows = np.zeros(61, ROW)
    names = source.locate(np.arange(61)[::-1], rows)
    for row, index in zip(rows, range(60, -1, -1), strict=True):
        data = folder.read(index)
        assert ctypes.string_at(int(row["offset"]), int(row["size"])) == data
        assert row["kind"] == (ENCODED if len(data) <= 1500 else ELSEWHERE)
    assert source._cache.loads == len(names.kept) == 7  # type: ignore[arg-type]
    # With little memory, groups are located one by one. Each stays in memory even if the next one evicts it.
    small = ParquetSource([bytes(path)], cache_bytes=1)
    rows = np.zeros(30, ROW)
    names = small.locate(np.arange(30), rows)
    assert (rows["kind"] == [ENCODED] * 10 + [ELSEWHERE] * 20).all()
    assert small.read(40) == folder.read(40)
    gc.collect()
    stored = [ctypes.string_at(int(row["offset"]), int(row["size"])) for row in rows[:10]]
    assert stored == [folder.read(index) for index in range(10)]
    reference = weakref.ref(small._cache.get(4, pytest.fail).chunks[0].sizes)
    names = small.locate(np.arange(50, 51), rows[:1])
    gc.collect()
    assert reference() is None
    path.unlink()
    rows = np.zeros(2, ROW)
    small.locate(np.array([0, 51]), rows)
    assert rows["kind"].tolist() == [ELSEWHERE, ENCODED]


def test_a_random_order_warns_once(tmp_path: Path, folder: ImageFolder) -> None:
    path = write_parquet(tmp_path / "x.parquet", photo_table(folder))
    in_order = ParquetSource([bytes(path)], cache_bytes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            for index in range(61):
                in_order.read(index)
        for index in range(0, 61, 10):
            ParquetSource([bytes(path)]).read(index)
    assert in_order._cache.loads == 70
    jumping = ParquetSource([bytes(path)], cache_bytes=1)
    text = r"about 61 row groups, 7 in the order of the files: pass shuffle='blocks', .*cache build"
    with pytest.warns(UserWarning, match=text) as caught:
        _read_jumping(jumping)
    assert len(caught) == 1


def test_a_shuffle_by_blocks_decodes_each_group_once(tmp_path: Path, folder: ImageFolder) -> None:
    path = write_parquet(tmp_path / "x.parquet", photo_table(folder))
    loads = {}
    for shuffle in ("blocks", Blocks(samples=4), True):
        source = ParquetSource([bytes(path)], cache_bytes=folder.num_bytes * 5 // 7)
        with warnings.catch_warnings(), create_loader(source, shuffle=shuffle, batch_size=4, workers=0) as loader:
            warnings.simplefilter("ignore")  # about sorted labels and the groups decoded per epoch
            for _ in range(3):
                assert sum(len(batch[1]) for batch in loader) == 60
        loads[str(shuffle)] = source._cache.loads / 3
    assert loads.pop("blocks") <= 7, loads  # fewer if groups of the previous epoch are still cached
    assert min(loads.values()) > 15, loads


def _read_jumping(source: ParquetSource) -> None:
    for index in range(400):
        source.read(index * 17 % 61)


def test_rows_without_label_image_or_bytes_are_refused_or_left_out(tmp_path: Path, folder: ImageFolder) -> None:
    (tmp_path / "a.jpg").write_bytes(folder.read(5))
    rows = [{"bytes": folder.read(0)}, {"path": "a.jpg"}, None, {"path": "absent.jpg"}, {"bytes": folder.read(1)}]
    table = pa.table({"image": pa.array(rows, IMAGE), "label": [1, 0, 0, 0, None]})
    path = write_parquet(tmp_path / "x.parquet", table, rows=2)
    with pytest.raises(LoaderError, match=r"E-FORMAT.*x.parquet row 4: no label: .*missing_labels='leave_out'"):
        open_source(path)
    with pytest.warns(UserWarning, match=r"x.parquet': left out: 1 row without a label \('row 4'\)"):
        source = open_source(path, missing_labels="leave_out")
    assert isinstance(source, ParquetSource)
    assert [source.read(index) for index in range(3)] == [folder.read(0), folder.read(5), b""]
    with pytest.raises(LoaderError, match=r"E-MISSING\] sample=3 path='.*absent\.jpg'"):
        source.read(3)
    assert source.skipped == {"row without a label": 1}
    assert source.block_sizes().tolist() == [2, 2, 0]
    by_row = open_source(write_parquet(tmp_path / "y.parquet", table.slice(3), rows=2), max_file_bytes=100, label=None)
    with pytest.raises(LoaderError, match=r"E-BOMB\] sample=1"):
        by_row.read(1)
    with pytest.raises(LoaderError, match=r"row 0: no label: fix=.*; pass label=None if the images have no labels"):
        open_source(write_parquet(tmp_path / "z.parquet", table.slice(4)))


def test_damage_within_a_group_affects_only_its_samples(tmp_path: Path, folder: ImageFolder) -> None:
    path = write_parquet(tmp_path / "x.parquet", photo_table(folder), write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[data.index(folder.read(15)) + 300] ^= 1
    path.write_bytes(data)
    source = open_source(path)
    assert source.read(9) == folder.read(9)
    for index in (10, 15):
        with pytest.raises(LoaderError, match=rf"E-CORRUPT\] sample={index} path='.*x\.parquet' cause=damaged"):
            source.read(index)


@pytest.mark.parametrize(
    ("columns", "image", "has"),
    [
        ({"image": IMAGE}, None, True),
        ({"x": pa.binary(), "file": pa.string()}, None, True),
        ({"image": pa.string()}, None, False),
        ({"image": pa.string(), "hash": pa.binary()}, None, False),
        ({"image": pa.string(), "jpg": pa.binary()}, "jpg", True),
        ({"image": pa.string(), "jpg": pa.binary()}, "image", False),
        ({"file": pa.string()}, None, False),
        ({"jpg": pa.binary()}, "image", True),
        ({"a": pa.binary(), "b": pa.binary()}, None, True),
    ],
)
def test_tables_with_images_are_distinguished_from_tables_of_paths(
    tmp_path: Path, columns: dict[str, Any], image: str | None, has: bool
) -> None:
    path = write_parquet(tmp_path / "x.parquet", pa.schema(list(columns.items())).empty_table())
    assert has_image_bytes(bytes(path), image) is has
