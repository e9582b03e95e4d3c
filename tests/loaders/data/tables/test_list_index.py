"""The index of rows: order, folders with labels, size, identity."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from folder_trees import plant

from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.tables.list_index import index_list
from penstock.loaders.data.tables.row_packer import RowPacker
from penstock.pipelines.native.rows import ROW


def index_of(root: Path, rows: list[tuple[str, int]]) -> Samples:
    packer = RowPacker()
    for row, (name, label) in enumerate(rows, start=1):
        packer.add(root / name, label, row)
    return index_list(packer)[0].save()


def rows_of(index: Samples) -> list[tuple[str, int]]:
    labels = index.labels_of(np.arange(len(index))).tolist()
    return [(os.fsdecode(index.container_name(n)), label) for n, label in enumerate(labels)]


# Few labels in long folders, one label per file, images in the root: each is stored differently.
ROWS = [
    *((f"long-folder-{n % 2}/{n:02}.jpg", n // 50) for n in range(100)),
    *((f"s/{n}.jpg", 99 - n) for n in range(100)),
    ("top.jpg", 3),
    ("top.jpg", 4),
    ("long-folder-0/00.jpg", 0),
]


def test_rows_keep_their_order_names_labels_sizes_and_times(tmp_path: Path) -> None:
    plant(tmp_path, {name: b"x" * (n % 7) for n, (name, _) in enumerate(ROWS)})
    index = index_of(tmp_path, ROWS)
    assert rows_of(index) == ROWS
    assert index.root == os.fsencode(tmp_path)
    assert [index.folder(n) for n in range(5)] == [b"long-folder-0"] * 2 + [b"long-folder-1"] * 2 + [b""]
    assert index.class_counts.tolist() == np.bincount([label for _, label in ROWS]).tolist()
    for n, (name, _) in enumerate(ROWS):
        status = os.stat(tmp_path / name)
        assert (index.sizes[n], index.versions[n]) == (status.st_size, status.st_mtime_ns)
    rows = np.zeros(len(ROWS), ROW)
    index.locate(np.arange(len(ROWS)), rows)
    _, folders, names, _ = index.names()
    for row, (name, _) in zip(rows, ROWS, strict=True):
        folder, own = (
            blob[row[f] : row[f] + row[f"{f}_bytes"]].tobytes() for blob, f in ((folders, "folder"), (names, "name"))
        )
        assert (folder + b"/" + own if folder else own) == name.encode()


@pytest.mark.parametrize("layout", ["class folders", "labels in every folder", "one folder per row"])
def test_a_row_takes_less_than_60_bytes(tmp_path: Path, layout: str) -> None:
    """For names of 20 bytes and any folders and labels."""
    rows = []
    for n in range(3000):
        folder, label = {
            "class folders": (f"n{n % 30:07}", n % 30),
            "labels in every folder": (f"{n % 256:02x}/{n % 16:02x}", n % 97),
            "one folder per row": (f"{n:06}", n % 10),
        }[layout]
        rows.append((f"{folder}/{n:015}.JPEG", label))
    plant(tmp_path, rows[:1] and [rows[0][0]])
    index = index_of(tmp_path, rows)
    assert rows_of(index) == rows
    columns = index.file.columns
    assert sum(column.nbytes for column in columns.values()) / len(rows) < 60


def test_the_common_folder_may_be_the_root_of_the_file_system(tmp_path: Path) -> None:
    plant(tmp_path, ["a.jpg"])
    packer = RowPacker()
    for row, path in enumerate([tmp_path / "a.jpg", "/none/b.jpg"], start=1):
        packer.add(path, 0, row)
    index = index_list(packer)[0].save()
    assert index.root == b"/"
    assert b"/" + index.container_name(0) == os.fsencode(tmp_path / "a.jpg")
