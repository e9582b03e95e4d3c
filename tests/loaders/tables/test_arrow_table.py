"""Parquet tables whose images are paths."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from penstock.loaders.tables import arrow_table
from penstock.loaders.tables.arrow_table import read_parquet
from penstock.loaders.tables.row_packer import NO_LABEL
from penstock.pipelines.errors import LoaderError


def write(file: Path, **columns: Any) -> bytes:
    parquet.write_table(pa.table(columns), file)
    return os.fsencode(file)


def test_rows_are_read_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_table, "_BATCH_ROWS", 2)
    names = [f"{number}.jpg" for number in range(5)]
    table = write(tmp_path / "t.parquet", path=names, label=[4, 3, 2, 1, 0], width=[1] * 5)
    assert list(read_parquet(table, None, None)) == list(zip(range(1, 6), names, [4, 3, 2, 1, 0], strict=True))
    assert [label for *_, label in read_parquet(table, None, "width")] == [1] * 5
    coded = write(tmp_path / "c.parquet", file_name=pa.array(names).dictionary_encode())
    assert list(read_parquet(coded, None, None)) == [(n, name, NO_LABEL) for n, name in enumerate(names, start=1)]


def test_columns_that_are_no_paths(tmp_path: Path) -> None:
    images = write(tmp_path / "t.parquet", image=[{"bytes": b"x", "path": "a"}], label=[0])
    with pytest.raises(ValueError, match=r"column 'image' of .*t\.parquet' must hold paths \(strings\), got struct"):
        list(read_parquet(images, None, None))
    with pytest.raises(ValueError, match=r"no column .* is known to hold images"):
        list(read_parquet(write(tmp_path / "q.parquet", a=["a"], b=["b"]), None, None))


def test_what_is_no_parquet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.parquet").write_bytes(b"path,label\n")
    with pytest.raises(LoaderError, match=r"E-FORMAT.*t\.parquet.*not a Parquet file"):
        list(read_parquet(os.fsencode(tmp_path / "t.parquet"), None, None))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*pip install pyarrow"):
        list(read_parquet(b"t.parquet", None, None))
