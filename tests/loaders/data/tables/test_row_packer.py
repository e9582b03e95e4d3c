"""Packing of rows: paths of every form are split into folder and name; a row without a path is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.loaders.data.labels.row_errors import RowOrigin
from penstock.loaders.data.tables import row_packer
from penstock.loaders.data.tables.row_packer import NO_LABEL, RowPacker
from penstock.pipelines.errors import LoaderError


def pack(paths: list[Any], base: bytes | None = b"/base") -> list[bytes]:
    packer = RowPacker()
    packer.begin(RowOrigin(), base)
    for row, path in enumerate(paths, start=1):
        packer.add(path, NO_LABEL, row)
    folders = list(packer.folders)
    return [
        folders[folder] + name
        for numbers, names in packer.chunks()
        for folder, name in zip(numbers, names, strict=True)
    ]


def test_paths_of_every_form_are_packed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.setattr(row_packer, "_CHUNK", 2)
    forms: dict[Any, bytes] = {
        "a.jpg": b"/base/a.jpg",
        b"b/\xff.jpg": b"/base/b/\xff.jpg",
        Path("c/d.jpg"): b"/base/c/d.jpg",
        "./c//./d.jpg": b"/base/c/d.jpg",
        "../e.jpg": b"/base/../e.jpg",
        "/abs/f.jpg": b"/abs/f.jpg",
        "~/g.jpg": b"/somewhere/g.jpg",
        "file:///h/i%20j.jpg": b"/h/i j.jpg",
        "file://localhost/k.jpg": b"/k.jpg",
        "odd:/l.jpg": b"/base/odd:/l.jpg",
    }
    assert pack(list(forms)) == list(forms.values())
    monkeypatch.chdir(tmp_path)
    assert pack(["a.jpg"], None) == pack(["a.jpg"], b".") == [os.fsencode(tmp_path / "a.jpg")]


def test_folders_are_stored_once() -> None:
    packer = RowPacker()
    for base in (b"/a", b"/b", b"/a/."):
        packer.begin(RowOrigin(), base)
        packer.add("x/1.jpg", NO_LABEL, 1)
        packer.add("./x/2.jpg", NO_LABEL, 2)
    assert list(packer.folders) == [b"/a/x/", b"/b/x/"]
    assert packer.folder_of.tolist() == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "no path"),
        ("folder/", "'folder/' is the path of a folder"),
        (None, "a path must be a string, got None"),
        (float("nan"), "a path must be a string, got nan"),
        ("a\0.jpg", "zero byte"),
        ("s3://bucket/a.jpg", "'s3://bucket/' in a list of files"),
        ("file://other/a.jpg", "on another host"),
    ],
)
def test_a_row_without_a_path_is_named(path: Any, text: str) -> None:
    with pytest.raises(LoaderError, match=f"E-FORMAT.*row 2: .*{text}"):
        pack(["a.jpg", path])
