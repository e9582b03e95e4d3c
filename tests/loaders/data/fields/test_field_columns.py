"""Fields from columns of tables, data frames and Arrow files with the same content."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from odd_images import encoded
from photo_folder import photo
from PIL import Image
from source_kinds import TABLES, Rows, Where, text_table

from penstock.loaders import Boxes, Column, Keypoints, Masks, create_loader, with_fields
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines.spec import ImagePipeline

N = 5
SIZES = [Image.open(io.BytesIO(photo(number))).size for number in range(N)]
MASKS = [np.random.default_rng(n).integers(0, 99, size[::-1]).astype(np.uint8) for n, size in enumerate(SIZES)]
BOXES = [[[0, 0, 8 + n, 9 + k] for k in range(n % 3)] for n in range(N)]
CLASSES = [["cat", "dog"][: n % 3] for n in range(N)]
POINTS = [[[1.5, 2.5, 2], [3.5, 4.5, 0]] for _ in range(N)]
WHOLE = ImagePipeline(size=(32, 32), crop="full", flip=0.0)


def png(number: int) -> bytes:
    return encoded(MASKS[number], "PNG")


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """Rows with masks that are files of tmp_path."""
    for number in range(N):
        (tmp_path / f"{number}_mask.png").write_bytes(png(number))
    columns = {
        "label": [n % 2 for n in range(N)],
        "seg": [f"{n}_mask.png" for n in range(N)],
        "corners": BOXES,
        "kinds": CLASSES,
        "joints": POINTS,
        "caption": [f"photo, {n}" for n in range(N)],
        "about": [{"number": n} for n in range(N)],
    }
    return Rows([photo(number) for number in range(N)], columns, [f"{n}.jpg" for n in range(N)])


def open_columns(data: Any, **others: Any) -> Source:
    return with_fields(
        data,
        mask=Column("seg"),
        boxes=Boxes(Column("corners"), Column("kinds"), names=["dog", "cat"]),
        keypoints=Keypoints(Column("joints"), [(0, 1)]),
        caption=Column("caption"),
        about=Column("about", json=True),
        **others,
    )


def write(rows: Rows, tmp_path: Path, kind: str) -> Any:
    """Write a table; if it contains the images, it also contains the masks."""
    if kind in ("parquet", "arrow", "dataset"):
        rows = replace(rows, columns=rows.columns | {"seg": [{"bytes": png(n), "path": None} for n in range(N)]})
    tables = TABLES | {"tsv": text_table("tsv", "\t", json.dumps)}
    spec, _ = tables[kind](Where(tmp_path), rows)
    return spec.select([1, 0, *range(2, N)]).select([1, 0, *range(2, N)]) if kind == "dataset" else spec


KINDS = ["csv", "tsv", "jsonl", "parquet of paths", "frame", "parquet", "arrow", "dataset"]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_each_kind_of_table_become_fields(rows: Rows, tmp_path: Path, kind: str) -> None:
    data = write(rows, tmp_path, kind)
    source = open_columns(data, **({"root": tmp_path} if kind == "frame" else {}))
    with create_loader(source, pipeline=WHOLE, batch_size=N, dtype=torch.uint8, workers=0) as loader:
        (batch,) = loader.batches()
    order = batch.index.tolist()
    fields = batch.fields
    assert fields["caption"] == [f"photo, {n}" for n in order]
    assert fields["about"] == [{"number": n} for n in order]
    assert [len(boxes) for boxes in fields["boxes"]] == [len(BOXES[n]) for n in order]
    assert [each.tolist() for each in fields["boxes_classes"]] == [[1, 0][: n % 3] for n in order]
    assert fields["keypoints"][:, 0, 0].tolist() == pytest.approx([1.5 * 32 / SIZES[n][0] for n in order])
    for number in range(N):
        mask = source.mask("mask", number)  # type: ignore[attr-defined]
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(mask))), MASKS[number])


def test_fields_come_from_a_table_next_to_the_data(rows: Rows, tmp_path: Path) -> None:
    table = write(rows, tmp_path, "csv")
    images, frame = rows.place(tmp_path / "data"), write(rows, tmp_path, "frame")
    source = with_fields(images, mask=Masks(Column("seg", table)), text=Column("caption", frame))
    assert source.fields(np.array([3]))["text"] == ["photo, 3"]  # type: ignore[attr-defined]
    assert source.mask("mask", 3) == png(3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"text": Column("captoin")}, "captoin"),
        ({"boxes": Column("caption")}, "column 'caption' must contain JSON, got 'photo, 0'"),
        ({"text": Column("caption", {"caption": ["a"]})}, "no column 'caption' in the table"),
        ({"text": Column("caption", pd.DataFrame({"caption": ["a"]}))}, "values must be one per sample (5), got 1"),
    ],
)
def test_unsuitable_columns_are_refused(rows: Rows, tmp_path: Path, spec: dict[str, Any], text: str) -> None:
    table = write(rows, tmp_path, "csv")
    with pytest.raises(ValueError, match=re.escape(text)):
        with_fields(table, **spec)


def test_masks_that_are_missing_and_files_without_columns_are_refused(rows: Rows, tmp_path: Path) -> None:
    rows.columns["seg"][4] = None
    with pytest.raises(ValueError, match=r"'seg' must contain a path or a file for each sample, got None for 4"):
        with_fields(write(rows, tmp_path, "jsonl"), mask=Column("seg"), label="label")
    image = tmp_path / "data/0.jpg"
    with pytest.raises(ValueError, match=r"needs a table.* pass Column\('caption', table="):
        with_fields([str(image)], text=Column("caption", image))
