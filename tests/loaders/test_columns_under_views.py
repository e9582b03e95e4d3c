"""Labels and fields belong to samples: whichever part of the data a view serves, each sample keeps its own values."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from odd_images import encoded
from PIL import Image
from source_kinds import TABLES, Rows, Where

from penstock.loaders import (
    Boxes,
    Column,
    Keypoints,
    LoaderError,
    Masks,
    concat,
    mix,
    open_source,
    split,
    with_fields,
    with_labels,
)
from penstock.loaders.data.sources.contract import Source

N = 12


def pixels(numbers: Any) -> np.ndarray:
    return np.broadcast_to(np.array(numbers, np.uint8)[:, None, None, None], (len(numbers), 4, 4, 3)).copy()


def table(folder: Path, kind: str) -> tuple[Any, dict[str, Any]]:
    """Return a table with one row per image, with the row's number in every column, and the options to open it."""
    images = [encoded(pixels([number])[0], "PNG") for number in range(N)]
    for number in range(N):
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(folder / f"mask{number}.png")
    columns = {
        "label": [number % 3 for number in range(N)],
        "text": [f"text {number}" for number in range(N)],
        "box": [[[0, 0, 1 + number / N, 2]] for number in range(N)],
        "point": [[[1 + number / N, 2]] for number in range(N)],
        "mask": [f"mask{number}.png" for number in range(N)],
    }
    spec, _ = TABLES[kind](Where(folder), Rows(images, columns, [f"{number}.png" for number in range(N)]))
    return spec, {"root": folder} if kind == "frame" else {}


FIELDS = {
    "text": Column("text"),
    "boxes": Boxes(Column("box")),
    "points": Keypoints(Column("point"), swaps=()),
    "mask": Masks(Column("mask")),
}


def check(source: Source) -> int:
    """Check that fields and label of each sample match its image; return the number of samples."""
    everything = np.arange(len(source))
    labels = source.labels(everything)
    found = source.fields(everything)  # type: ignore[attr-defined]
    numbers = [number_of(source.read(index)) for index in everything.tolist()]
    assert labels.tolist() == [number % 3 for number in numbers]
    assert found["text"] == [f"text {number}" for number in numbers]
    assert found["boxes"].parts[0][:, 2] == pytest.approx([1 + number / N for number in numbers])
    assert found["points"][:, 0, 0] == pytest.approx([1 + number / N for number in numbers])
    assert [number_of(source.mask("mask", index)) for index in everything.tolist()] == numbers  # type: ignore[attr-defined]
    return len(numbers)


def number_of(image: Any) -> int:
    if not isinstance(image, np.ndarray):
        with Image.open(io.BytesIO(image)) as opened:
            image = np.asarray(opened)
    return int(image.flat[0])


def draw_subset(rng: np.random.Generator, count: int) -> Any:
    kind = rng.integers(5)
    if kind == 0:
        return "::-1"
    if kind == 1:
        return rng.permutation(count).tolist()
    if kind == 2:
        return rng.permutation(count)[: rng.integers(1, count + 1)]
    if kind == 3:
        return f"{rng.integers(0, 2)}::{rng.integers(1, 3)}"
    return rng.permutation(np.arange(count) < max(1, count // 2))


def draw_view(rng: np.random.Generator, source: Source) -> Source:
    """Return one more view of a source with fields."""
    kind = rng.integers(5)
    if kind == 0:
        return open_source(source, subset=draw_subset(rng, len(source)))
    if kind == 1:
        return open_source(source, max_per_class=int(rng.integers(1, 5)))
    if kind == 2:
        return split(source, 0.5, seed=int(rng.integers(9)), by_class=False)[0] if len(source) > 7 else source
    if kind == 3:
        return concat([open_source(source, subset=draw_subset(rng, len(source))), source])
    return concat([source, open_source(source, subset="::-1")])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet of paths", "frame"])
def test_columns_under_random_views(tmp_path: Path, kind: str) -> None:
    """25 nested views of each table; with_fields itself may create the first one."""
    rng = np.random.default_rng(7)
    data, options = table(tmp_path, kind)
    served = 0
    for _ in range(25):
        part: dict[str, Any] = {}
        if rng.integers(2):
            part["subset"] = draw_subset(rng, N)
        if rng.integers(3) == 0:
            part["max_per_class"] = int(rng.integers(1, 5))
        source = with_fields(data, **FIELDS, **options, **part)
        for _ in range(rng.integers(0, 3)):
            source = draw_view(rng, source)
        served += check(source)
    assert served > 150


@pytest.mark.filterwarnings("ignore:this subset leaves out")
@pytest.mark.parametrize("make", ["labels", "fields"])
def test_lists_match_the_whole_data_or_its_part_by_their_length(make: str) -> None:
    images = (pixels(range(N)), np.arange(N) % 3)
    rng = np.random.default_rng(3)

    def attach(values: list[int], **part: Any) -> list[int]:
        if make == "labels":
            source = with_labels(images, values, **part)
            return source.labels(np.arange(len(source))).tolist()
        source = with_fields(images, value=[str(each) for each in values], **part)
        return [int(text) for text in source.fields(np.arange(len(source)))["value"]]  # type: ignore[attr-defined]

    for _ in range(40):
        subset = draw_subset(rng, N)
        served = open_source(images, subset=subset)
        numbers = [number_of(served.read(index)) for index in range(len(served))]
        assert attach(list(range(N)), subset=subset) == numbers
        if len(numbers) < N:
            assert attach(numbers, subset=subset) == numbers
        if len(numbers) < N - 1:
            with pytest.raises(ValueError, match=r"one per sample"):
                attach(list(range(N - 1)), subset=subset)


def test_a_column_cannot_follow_an_order_that_its_table_lacks(tmp_path: Path) -> None:
    data, _ = table(tmp_path, "csv")
    backwards, part = open_source(data, subset="::-1"), open_source(data, subset="::2")
    views: list[Callable[[], Source]] = [
        lambda: backwards,
        lambda: concat([backwards]),
        lambda: with_labels(backwards, [0] * N),
        lambda: concat(split(data, 0.5)[::-1]),
        lambda: concat([open_source(data, subset="6:"), open_source(data, subset=":6")]),
        lambda: concat([with_labels(part, [0] * len(part)) for part in split(data, 0.5)[::-1]]),
        lambda: concat([concat([open_source(data, subset="6:")]), concat([open_source(data, subset=":6")])]),
        lambda: mix({"a": (open_source(data, subset="6:"), 1), "b": (open_source(data, subset=":6"), 1)}),
    ]
    for view in views:
        with pytest.raises(ValueError, match="serves the rows in another order"):
            with_fields(view(), text=Column("text", data))
    with pytest.raises(ValueError, match="one per sample"):
        with_fields(part, text=Column("text", data))
    halves = concat([open_source(data, subset=":6"), open_source(data, subset="6:")])
    served: Any = with_fields(halves, text=Column("text", data))
    numbers = [number_of(served.read(index)) for index in range(N)]
    assert served.fields(np.arange(N))["text"] == [f"text {number}" for number in numbers]
    assert len(with_fields(open_source(data, subset=range(N)), text=Column("text", data))) == N
    assert len(with_fields(mix({"a": (open_source(data), 1.0)}), text=Column("text", data))) == N


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "feather", "frame"])
def test_a_table_that_names_images_must_have_their_order(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").mkdir()
    for number in range(N):
        Image.fromarray(pixels([number])[0]).save(tmp_path / f"a/{number:02}.png")
    rows = pd.DataFrame({"File_Name": [f"{n:02}.png" for n in range(N)], "text": [f"text {n}" for n in range(N)]})

    def write(frame: pd.DataFrame) -> Any:
        frame, path = frame.reset_index(drop=True), tmp_path / f"t.{kind}"
        if kind == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        elif kind == "tsv":
            frame.to_csv(path, index=False, sep="\t")
        elif kind != "frame":
            getattr(frame, f"to_{kind}")(path, **({} if kind == "feather" else {"index": False}))
        return frame if kind == "frame" else path

    def texts(frame: pd.DataFrame, **options: Any) -> list[str]:
        source: Any = with_fields(tmp_path / "a", text=Column("text", write(frame)), **options)
        found: list[str] = source.fields(np.arange(len(source)))["text"]
        return found

    below = rows.assign(File_Name="photos/a/" + rows.File_Name)
    for frame in (rows, below, rows.assign(File_Name="other " + rows.File_Name[::-1].to_numpy())):
        assert texts(frame) == list(rows.text)
        assert texts(frame, subset=[3, 1]) == ["text 3", "text 1"]
    for frame in (rows[::-1], below[::-1]):
        with pytest.raises(ValueError, match=r"order differs from the data's: its row 0.*11.png.* sample 0 is"):
            texts(frame)
    swapped = rows.iloc[[*range(N - 2), N - 1, N - 2]]
    with pytest.raises(ValueError, match="its row 10"):
        texts(swapped, subset=[3, 1])


def test_a_table_may_have_equal_names_in_other_folders(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels([1])[0]).save(tmp_path / folder / "1.png")
    frame = pd.DataFrame({"path": ["b/1.png", "a/1.png"], "text": ["b", "a"]})
    with pytest.raises(ValueError, match="order differs"):
        with_fields(tmp_path, text=Column("text", frame))
    assert len(with_fields(tmp_path, text=Column("text", frame[::-1]))) == 2
    frame.path = [Path(path) for path in frame.path]
    with pytest.raises(ValueError, match="order differs"):
        with_fields(tmp_path, text=Column("text", frame))


def test_image_files_in_another_order_than_the_table_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(tmp_path / f"{part}.parquet") for part in (0, 1)]
    for part, file in enumerate(files):
        images = [{"bytes": pixels([part])[0].tobytes(), "path": "1.png"}] * 3
        texts = [f"{part} {row}" for row in range(3)]
        pd.DataFrame({"image": images, "text": texts, "label": 0}).to_parquet(file)
    column = Column("text", tmp_path / "*.parquet")
    source: Any = with_fields(files, text=column)
    assert source.fields(np.arange(6))["text"] == [f"{part} {row}" for part in (0, 1) for row in range(3)]
    for data in (files[::-1], concat(files[::-1])):
        with pytest.raises(
            ValueError, match=r"order differs from the data's: its row 0.*0\.parquet:row 0.*1\.parquet:row 0"
        ):
            with_fields(data, text=column)
    read, really = [], pq.ParquetFile.read

    def spy(file: Any, names: Any) -> Any:
        read.append(names)
        return really(file, names)

    monkeypatch.setattr(pq.ParquetFile, "read", spy)
    with_fields((pixels(range(3)), np.arange(3)), text=Column("text", files[0]))
    assert read == [["text"]]  # without the images


def test_a_missing_table_is_reported(tmp_path: Path) -> None:
    images = (pixels(range(N)), np.arange(N))
    with pytest.raises(LoaderError, match=r"E-MISSING.*no\.csv"):
        with_fields(images, text=Column("text", tmp_path / "no.csv"))


@pytest.mark.parametrize("subset", [None, "::-1"])
def test_a_column_of_a_table_with_skipped_rows_is_refused(tmp_path: Path, subset: Any) -> None:
    data, _ = table(tmp_path, "jsonl")
    lines = [json.loads(line) for line in Path(data).read_text().splitlines()]
    lines[3]["label"] = None
    Path(data).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    options = {"label": "label", "missing_labels": "leave_out", "subset": subset}
    with (
        pytest.warns(UserWarning, match="without a label"),
        pytest.raises(ValueError, match=r"field 'text': a Column has one value per row.* leaves out 1 of the rows"),
    ):
        with_fields(data, text=Column("text"), **options)
