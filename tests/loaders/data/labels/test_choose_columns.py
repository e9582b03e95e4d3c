"""Choice of a table's columns: automatic, requested, and the error if none fits."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from photo_folder import write_folder

from penstock.loaders import open_source
from penstock.loaders.data.labels.choose_columns import IMAGE_COLUMNS, LABEL_COLUMNS, choose_columns


def test_names_in_common_use_are_found_in_their_order() -> None:
    for at, name in enumerate(IMAGE_COLUMNS):
        assert choose_columns([*IMAGE_COLUMNS[: at - len(IMAGE_COLUMNS) - 1 : -1], "label"], None, None, "t")[0] == name
    usual = ("label", "class", "target", "category", "y")
    known = [*usual, *(name for name in LABEL_COLUMNS if name not in usual)]
    for at, name in enumerate(known):
        assert choose_columns(["path", *known[: at - len(known) - 1 : -1]], None, None, "t")[1] == name
    assert choose_columns(["Class", "File_Name"], None, None, "t") == ("File_Name", "Class")
    assert choose_columns(["path"], None, None, "t") == ("path", None)
    assert choose_columns(["path", "image"], "path", "image", "t") == ("path", "image")
    assert choose_columns(["label", "y"], "label", None, "t") == ("label", "y")


@pytest.mark.parametrize(
    ("columns", "image", "label", "text"),
    [
        (
            ["a", "b"],
            None,
            None,
            "no column of t has a known name for images: its columns are 'a', 'b'; name one with image=",
        ),
        (["a", "image_file"], None, None, "'image_file'; pass image='image_file'"),
        (["pixels"], None, None, "pass image='pixels'"),
        (["path", "label"], "paths", None, "image='paths' is not a column of t: .* 'path', 'label'; pass image='path'"),
        (["path", "species"], None, "Specie", "label='Specie' is not a column of t: .*; pass label='species'"),
        (["a/1.JPG", "0"], None, None, "the first line of a table must be the names of its columns"),
    ],
)
def test_missing_columns_are_refused_with_advice(
    columns: list[str], image: str | None, label: str | None, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        choose_columns(columns, image, label, "t")


def test_label_columns_that_may_be_overlooked_warn() -> None:
    for columns, advice in (
        (
            ["path", "species", "a_label"],
            "in one class: besides 'path' it has the columns 'species', 'a_label'; pass label='a_label'",
        ),
        (["kind", "path"], "besides 'path' it has the column 'kind'; pass label='kind'"),
        (["path", "Caption"], "the column 'Caption'; pass text='Caption' for its texts"),
        (
            ["path", "caption", "x"],
            "the columns 'caption', 'x'; pass label= with one of them, or text='caption' for its texts",
        ),
    ):
        with pytest.warns(UserWarning, match=re.escape(advice)):
            assert choose_columns(columns, None, None, "t") == ("path", None)


@pytest.mark.parametrize(
    ("image", "label"),
    [("image", "label"), ("FilePath", "Labels"), ("file_name", "cls"), ("Picture", "Y"), ("jpg", "CLASS_ID")],
)
def test_every_format_knows_the_same_names(tmp_path: Path, image: str, label: str) -> None:
    paths = sorted(map(str, write_folder(tmp_path / "photos", 4).glob("*/*.jpg")))
    columns = {"id": ["a", "b", "c", "d"], label: [0, 2, 1, 2], image: paths}
    table = pa.table(columns)
    with open(tmp_path / "t.csv", "w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(table, tmp_path / "t.parquet")
    with pa.OSFile(str(tmp_path / "t.feather"), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    given = [*(tmp_path / f"t.{suffix}" for suffix in ("csv", "jsonl", "parquet", "feather")), pd.DataFrame(columns)]
    for source in map(open_source, given):
        assert source.labels(np.arange(4)).tolist() == [0, 2, 1, 2]
        assert [Path(paths[n]).read_bytes() for n in range(4)] == [bytes(source.read(n)) for n in range(4)]
