"""CSV, TSV, JSON lines and Parquet: every way to write them, and errors with the line number."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from penstock.loaders.data.tables import table_rows
from penstock.loaders.data.tables.row_packer import NO_LABEL
from penstock.loaders.data.tables.table_rows import choose_reader, read_parquet
from penstock.pipelines.errors import LoaderError


def rows_of(path: Path, content: str | bytes, image: Any = None, label: Any = None) -> list[tuple[int, Any, Any]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(choose_reader(os.fsencode(path))(os.fsencode(path), image, label))


TABLES: dict[str, tuple[str, str | bytes, list[tuple[int, Any, Any]]]] = {
    "a byte order mark and Windows line ends": ("t.csv", b"\xef\xbb\xbfpath,label\r\na.jpg,1\r\n", [(2, "a.jpg", "1")]),
    "no newline at the end": ("t.csv", "label,path\n1,a.jpg", [(2, "a.jpg", "1")]),
    "quotes around commas, quotes and newlines": (
        "t.csv",
        'path,label\n"a,""b"".jpg",1\n"c\nd.jpg",2\ne.jpg,3\n',
        [(2, 'a,"b".jpg', "1"), (4, "c\nd.jpg", "2"), (5, "e.jpg", "3")],
    ),
    "spaces after commas": ("t.csv", "path, label\na b.jpg, 1\n", [(2, "a b.jpg", "1")]),
    "empty lines": ("t.csv", "path,label\n\na.jpg,1\n\n", [(3, "a.jpg", "1")]),
    "no labels": ("t.csv", "path\na.jpg\n", [(2, "a.jpg", NO_LABEL)]),
    "not UTF-8": ("t.csv", b"path,label\na\xff.jpg,\xe9\n", [(2, "a\udcff.jpg", "\udce9")]),
    "tabs": ("t.TSV", "path\tlabel\na, b.jpg\t1\n", [(2, "a, b.jpg", "1")]),
    "JSON": (
        "t.jsonl",
        '{"path": "a.jpg", "label": 1, "more": {}}\n\n{"label": "x", "path": "b\\u00e9.jpg"}',
        [(1, "a.jpg", 1), (3, "bé.jpg", "x")],
    ),
    "JSON without labels": ("t.jsonl", '\ufeff{"file_name": "a.jpg"}\n', [(1, "a.jpg", NO_LABEL)]),
    "JSON with null": ("t.jsonl", '{"path": "a.jpg", "label": null}\n', [(1, "a.jpg", None)]),
}


@pytest.mark.parametrize("case", TABLES)
def test_rows_are_read(tmp_path: Path, case: str) -> None:
    name, content, expected = TABLES[case]
    assert rows_of(tmp_path / name, content) == expected


def test_requested_columns_are_read(tmp_path: Path) -> None:
    assert rows_of(tmp_path / "t.csv", "a,b,label\n1,x.jpg,2\n", "b", "a") == [(2, "x.jpg", "1")]
    assert rows_of(tmp_path / "t.jsonl", '{"a": 1, "b": "x.jpg"}', "b", "a") == [(1, "x.jpg", 1)]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("train.csv", "path,label\na.jpg,1\nb.jpg,2,3\n", r"train\.csv line 3: 3 columns, expected 2"),
        ("train.csv", "path,label\na.jpg\n", r"train\.csv line 2: 1 column, expected 2"),
        ("train.csv", 'path,label\n"a.jpg,1\nb.jpg,2\n', r"train\.csv line 3: unexpected end of data"),
        ("train.csv", 'path,label\n"a"b.jpg,1\n', r"train\.csv line 2: "),
        ("train.jsonl", '{"path": "a", "label": 1}\n{"path": \n', r"train\.jsonl line 2: not JSON"),
        ("train.jsonl", '{"path": "a", "label": 1}\n{"label": 2}\n', r"train\.jsonl line 2: no 'path'"),
        ("train.jsonl", '{"path": "a"}\n{"path": "b", "label": 1}\n', r"line 2: it has 'label', but line 1 does not"),
        ("train.jsonl", '["a", 1]\n', r"train\.jsonl line 1: a line must be a JSON object, got \['a', 1\]"),
        ("train.jsonl", "[" * 100_000 + "\n", r"train\.jsonl line 1: not JSON"),
    ],
)
def test_a_malformed_table_names_file_and_line(tmp_path: Path, name: str, content: str, text: str) -> None:
    with pytest.raises(LoaderError, match=text) as caught:
        rows_of(tmp_path / name, content)
    assert (caught.value.code, caught.value.path) == ("E-FORMAT", os.fsencode(tmp_path / name))


def write_parquet(file: Path, **columns: Any) -> bytes:
    parquet.write_table(pa.table(columns), file)
    return os.fsencode(file)


def test_rows_of_parquet_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_BATCH_ROWS", 2)
    names = [f"{number}.jpg" for number in range(5)]
    table = write_parquet(tmp_path / "t.parquet", path=names, label=[4, 3, 2, 1, 0], width=[1] * 5)
    assert list(read_parquet(table, None, None)) == list(zip(range(1, 6), names, [4, 3, 2, 1, 0], strict=True))
    assert [label for *_, label in read_parquet(table, None, "width")] == [1] * 5
    coded = write_parquet(tmp_path / "c.parquet", file_name=pa.array(names).dictionary_encode())
    assert list(read_parquet(coded, None, None)) == [(n, name, NO_LABEL) for n, name in enumerate(names, start=1)]
    images = write_parquet(tmp_path / "i.parquet", image=[{"bytes": b"x", "path": "a"}], label=[0])
    with pytest.raises(ValueError, match=r"column 'image' of .*i\.parquet' must contain paths \(strings\), got struct"):
        list(read_parquet(images, None, None))
    (tmp_path / "t.parquet").write_bytes(b"path,label\n")
    with pytest.raises(LoaderError, match=r"E-FORMAT.*t\.parquet.*not a Parquet file"):
        list(read_parquet(table, None, None))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*pip install pyarrow"):
        list(read_parquet(table, None, None))
