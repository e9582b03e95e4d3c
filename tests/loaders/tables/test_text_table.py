"""CSV, TSV and JSON lines: every way of writing them, and the line of what is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.loaders.tables.row_packer import NO_LABEL
from penstock.loaders.tables.text_table import read_csv, read_json_lines
from penstock.pipelines.errors import LoaderError


def rows_of(path: Path, content: str | bytes, image: Any = None, label: Any = None) -> list[tuple[int, Any, Any]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    read = read_json_lines if path.suffix == ".jsonl" else read_csv
    return list(read(os.fsencode(path), image, label))


TABLES: dict[str, tuple[str, str | bytes, list[tuple[int, Any, Any]]]] = {
    "a mark of byte order, and Windows' lines": (
        "t.csv",
        b"\xef\xbb\xbfpath,label\r\na.jpg,1\r\n",
        [(2, "a.jpg", "1")],
    ),
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


def test_columns_that_are_asked_for(tmp_path: Path) -> None:
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
        ("train.jsonl", '{"path": "a", "label": 1}\n{"path": "b"}\n', r"train\.jsonl line 2: no 'label'"),
        ("train.jsonl", '["a", 1]\n', r"train\.jsonl line 1: a line must be a JSON object, got \['a', 1\]"),
        ("train.jsonl", "[" * 100_000 + "\n", r"train\.jsonl line 1: not JSON"),
    ],
)
def test_a_malformed_table_names_file_and_line(tmp_path: Path, name: str, content: str, text: str) -> None:
    with pytest.raises(LoaderError, match=text) as caught:
        rows_of(tmp_path / name, content)
    assert (caught.value.code, caught.value.path) == ("E-FORMAT", os.fsencode(tmp_path / name))
