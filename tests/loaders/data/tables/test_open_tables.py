"""Tables as sources: every suffix, relative paths, and a saved index that is used only while it is up to date."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from folder_trees import plant, settle

from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.tables import open_tables as module
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.errors import LoaderError

ROWS = [("images/3.jpg", 2), ("images/1.jpg", 0), ("more/2.jpg", 2)]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tables that were read, in order."""
    names: list[str] = []
    pack = module._pack_table

    def pack_and_note(packer: Any, path: bytes, *rest: Any) -> None:
        names.append(os.fsdecode(os.path.basename(path)))
        pack(packer, path, *rest)

    monkeypatch.setattr(module, "_pack_table", pack_and_note)
    return names


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    plant(tmp_path / "tree", [name for name, _ in ROWS])
    write_csv(tmp_path / "tree" / "t.csv")
    return settle(tmp_path / "tree")


def write_csv(path: Path, rows: Any = ROWS, between: str = ",") -> Path:
    path.write_text("".join(f"{name}{between}{label}\n" for name, label in [("path", "label"), *rows]))
    return path


def rows_of(source: Any) -> list[tuple[str, int]]:
    labels = source.labels(np.arange(len(source))).tolist()
    return [(source.read(n).decode(), label) for n, label in enumerate(labels)]


def test_tables_of_every_suffix_are_opened(tree: Path) -> None:
    write_csv(tree / "t.tsv", between="\t")
    lines = "".join(json.dumps({"path": name, "label": label}) + "\n" for name, label in ROWS)
    for suffix in ("jsonl", "NDJSON"):
        (tree / f"t.{suffix}").write_text(lines)
    names, labels = zip(*ROWS, strict=True)
    parquet.write_table(pa.table({"path": names, "label": labels}), tree / "t.parquet")
    fingerprints = set()
    for suffix in ("csv", "tsv", "jsonl", "NDJSON", "parquet"):
        source = open_source(tree / f"t.{suffix}")
        assert isinstance(source, IndexedSource)
        assert rows_of(source) == ROWS, suffix
        assert source.classes == (b"0", b"1", b"2")
        fingerprints.add(source.fingerprint)
    assert fingerprints == {open_source(ROWS, root=tree).fingerprint}


def test_options_and_hugging_face_metadata_choose_columns_and_paths(tree: Path, tmp_path: Path) -> None:
    (tree / "images" / "metadata.csv").write_text("file_name,text,kind\n3.jpg,a photo,dog\n1.jpg,,cat\n")
    with pytest.warns(UserWarning, match="'text', 'kind'; pass label= with one of them, or text='text' for"):
        assert open_source(tree / "images" / "metadata.csv").classes == (b".",)
    source = open_source(tree / "images" / "metadata.csv", label="kind")
    assert (rows_of(source), source.classes) == ([("images/3.jpg", 1), ("images/1.jpg", 0)], (b"cat", b"dog"))
    source = open_source(tree / "images" / "metadata.csv", label="kind", classes=["fox", "dog", "cat"])
    assert rows_of(source) == [("images/3.jpg", 1), ("images/1.jpg", 2)]
    write_csv(tmp_path / "elsewhere.csv")
    assert rows_of(open_source(tmp_path / "elsewhere.csv", root=tree)) == ROWS
    with pytest.raises(LoaderError, match=r"E-NODATA.*none of the 3 files.*root="):
        open_source(tmp_path / "elsewhere.csv")
    write_csv(tree / "images" / "ids.csv", [("3", 1), ("1", 0)])
    with pytest.raises(LoaderError, match=r"none of the 2 files.*fix=add the suffix to all paths: '3\.jpg' exists"):
        open_source(tree / "images" / "ids.csv")


def test_several_tables_are_one_source(tree: Path) -> None:
    write_csv(tree / "t-0.csv", ROWS[:1])
    write_csv(tree / "more" / "t-1.csv", [("2.jpg", 7)])
    assert rows_of(open_source(str(tree / "{t-0,more/t-1}.csv"))) == [("images/3.jpg", 2), ("more/2.jpg", 7)]
    write_csv(tree / "more" / "t-1.csv", [("2.jpg", -1)])
    with pytest.raises(LoaderError, match=r"path='.*/more/t-1\.csv' cause=t-1\.csv line 2: label -1"):
        open_source(str(tree / "{t-0,more/t-1}.csv"))


def test_a_table_without_rows_is_refused(tree: Path) -> None:
    for content in ("", "path,label\n"):
        (tree / "t.csv").write_text(content)
        with pytest.raises(LoaderError, match=r"E-NODATA\] path='.*t\.csv'"):
            open_source(tree / "t.csv")


def test_a_saved_index_is_used_until_an_image_changes(tree: Path, reads: list[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tree)
    first = open_source(tree / "t.csv")
    assert rows_of(open_source("t.csv")) == rows_of(first)
    assert len(reads) == 1
    os.utime(tree / "images" / "1.jpg", (7, 7))
    assert rows_of(open_source(tree / "t.csv")) == ROWS
    assert len(reads) == 2


def test_other_options_have_a_separate_index(tree: Path, reads: list[str], own_cache: Path) -> None:
    for _ in range(2):
        for options in ({}, {"classes": ["a", "b", "c"]}, {"root": tree / "more" / ".."}, {"label": "label"}):
            open_source(tree / "t.csv", **options)
    assert len(reads) == len(list(own_cache.iterdir())) == 3  # this root is the table's own folder


def test_another_folder_of_images_or_another_table_has_a_separate_index(tree: Path, tmp_path: Path) -> None:
    """plant() writes the path of each file as its content."""
    plant(tmp_path / "other", [name for name, _ in ROWS])
    (tmp_path / "other" / ROWS[0][0]).write_text("of the other folder")
    settle(tmp_path / "other")
    assert rows_of(open_source(tree / "t.csv", root=tree))[0] == ROWS[0]
    assert rows_of(open_source(tree / "t.csv", root=tmp_path / "other"))[0] == ("of the other folder", 2)


def test_a_table_that_changed_just_now_is_read_again(tree: Path, reads: list[str], own_cache: Path) -> None:
    write_csv(tree / "t.csv")
    for _ in range(2):
        assert rows_of(open_source(tree / "t.csv")) == ROWS
    assert len(reads) == 2
    assert not own_cache.exists() or not list(own_cache.iterdir())


def test_a_missing_file_that_reappears_is_found(tmp_path: Path) -> None:
    rows = [(f"{n}.jpg", 0) for n in range(1000)]
    plant(tmp_path, [name for name, _ in rows])
    settle(write_csv(tmp_path / "t.csv", rows).parent)
    (tmp_path / "2.jpg").unlink()  # 0, 4, 8, ... are the sample
    for _ in range(2):  # also from the saved index
        with pytest.warns(UserWarning, match="1 of 1,000 files"):
            open_source(tmp_path / "t.csv")
    (tmp_path / "2.jpg").write_bytes(b"again")
    assert open_source(tmp_path / "t.csv").read(2) == b"again"


def test_refreshed_detects_a_changed_file_outside_the_sample(tmp_path: Path) -> None:
    rows = [(f"{n}.jpg", 0) for n in range(1000)]
    plant(tmp_path / "many", [name for name, _ in rows])
    write_csv(tmp_path / "many" / "t.csv", rows)
    settle(tmp_path / "many")
    source = open_source(tmp_path / "many" / "t.csv")
    assert isinstance(source, IndexedSource)
    assert source.refreshed() is source
    os.utime(tmp_path / "many" / "2.jpg", (7, 7))  # 0, 4, 8, ... are the sample
    assert open_source(tmp_path / "many" / "t.csv").content == source.content
    again = source.refreshed()
    assert again.content != source.content
    assert again.read(2) == b"2.jpg"
    write_csv(tmp_path / "many" / "t.csv", rows[1:])
    assert len(again.refreshed()) == 999
