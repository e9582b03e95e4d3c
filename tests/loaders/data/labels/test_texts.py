"""Texts by text=: the same in every container, joined to their images, missing ones refused or counted."""

from __future__ import annotations

import io
import json
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from source_kinds import TABLES, Rows, Where
from tar_files import write_tar

from penstock.loaders import LoaderError, concat, open_source, with_fields, with_labels
from penstock.loaders.data.sources.contract import ONE_CLASS

CONTAINERS = [name for name in TABLES if name != "list"]  # its captions are lists of with_fields, or files
NO_LISTS = ("csv", "tsv")
WORDS = ["cat", "42", "3,5", "[1, 2]", "nan", "\u00e9t\u00e9", "\U0001f600", 'say "x"', "line\nbreak", "-1", "True"]
NUM_COLUMNS = 12  # random columns, each in all containers
IMAGE = io.BytesIO()
Image.new("RGB", (2, 2)).save(IMAGE, "PNG")
PNG = IMAGE.getvalue()


def draw_text(rng: random.Random) -> str:
    return rng.choice(["", " ", "\t"]) + " ".join(rng.sample(WORDS, rng.randrange(1, 5))) + rng.choice(["", "\n", "  "])


def draw_column(rng: random.Random) -> list[Any]:
    """Draw texts or lists of texts, some of them missing."""
    count, are_lists = rng.randrange(2, 9), rng.random() < 0.4
    column: list[Any] = [
        [draw_text(rng) for _ in range(rng.randrange(1, 4))] if are_lists else draw_text(rng) for _ in range(count)
    ]
    for _ in range(rng.choice([0, 0, 1, 2])):
        column[rng.randrange(count)] = rng.choice([None, [] if are_lists else " "])
    return column


def served_as(value: Any) -> Any:
    """Return a text, or a list of texts, as it must be served; None for a missing one."""
    if isinstance(value, list):
        return [text.strip() for text in value] or None
    return (value or "").strip() or None


def write(container: str, folder: Path, column: list[Any], **others: list[Any]) -> tuple[Any, dict[str, Any]]:
    folder.mkdir(parents=True)
    columns = {"caption": column, **others}
    spec, options = TABLES[container](
        Where(folder), Rows([PNG] * len(column), columns, [f"{n:04}.png" for n in range(len(column))])
    )
    is_tar = container == "tar"
    named = {name: f"json:{name}" if is_tar else name for name in columns}
    text = {"text": named.pop("caption")}
    return spec, {**options, **text, **({"label": next(iter(named.values()))} if named else {})}


def texts_of(source: Any) -> Any:
    return source.fields(np.arange(len(source)))["text"]


def test_random_columns_are_served_alike_by_all_containers(tmp_path: Path) -> None:
    for number in range(NUM_COLUMNS):
        rng = random.Random(number)
        column, leaves_out = draw_column(rng), bool(number % 2)
        labels = {"label": [rng.randrange(3) for _ in column]} if rng.random() < 0.5 else {}
        wanted = [served_as(value) for value in column]
        kept = [row for row, value in enumerate(wanted) if value is not None]
        for container in CONTAINERS:
            if container in NO_LISTS and any(isinstance(value, list) for value in column):
                continue
            spec, options = write(container, tmp_path / f"{container} {number}", column, **labels)
            if len(kept) < len(column) and not (leaves_out and kept):
                with pytest.raises(LoaderError, match="text") as refused:
                    open_source(spec, **options)
                count = len(column) - len(kept)
                assert f"{count} of" in str(refused.value) or count == 1
                continue
            for _ in range(2):  # made, then loaded from the saved index
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    source = open_source(spec, **options, **({"missing_text": "leave_out"} if leaves_out else {}))
                lost = [str(each.message) for each in caught if "without a text" in str(each.message)]
                assert len(lost) == (len(kept) < len(column))
                assert all(f"{len(column) - len(kept)} " in text for text in lost)
                assert texts_of(source) == [wanted[row] for row in kept], container
                if labels:
                    numbers = sorted(set(labels["label"])), source.labels(np.arange(len(source))).tolist()
                    assert numbers[1] == [labels["label"][row] for row in kept]
                else:
                    assert source.classes == (ONE_CLASS,)


@pytest.mark.parametrize("suffix", ["txt", "json:caption"])
def test_texts_beside_images_and_in_tars_are_joined_by_name(tmp_path: Path, suffix: str) -> None:
    def content(name: str) -> bytes:
        text = f"text of {name}"
        return text.encode() if suffix == "txt" else json.dumps({"caption": text}).encode()

    members, end = list[tuple[str, bytes]](), suffix.partition(":")[0]
    for folder, name in (("b", "1.x"), ("a", "2"), ("a", "1.x"), ("b", "10")):
        where = tmp_path / "photos" / folder
        where.mkdir(parents=True, exist_ok=True)
        (where / f"{name}.png").write_bytes(PNG)
        (where / f"{name}.{end}").write_bytes(content(f"{folder}/{name}"))
        key = f"{folder}/{name.replace('.', '-')}"  # keys end at the first dot
        members += [(f"{key}.{end}", content(key)), (f"{key}.png", PNG)]
    order = ["a/1.x", "a/2", "b/1.x", "b/10"]
    photos = tmp_path / "photos"
    paths = [str(photos / f"{name}.png") for name in order]
    for spec in (photos, f"{photos}/*/*.png", paths, [(path, path[-1]) for path in paths]):
        source = open_source(spec, text=suffix)
        named = [source.path(index).decode()[len(str(photos)) + 1 : -4] for index in range(4)]
        assert texts_of(source) == [f"text of {name}" for name in named]
        assert sorted(named) == order
    tar = open_source(write_tar(tmp_path / "t.tar", members), text=suffix, label=None)
    assert texts_of(tar) == [f"text of {tar.name(index).decode()[:-4]}" for index in range(4)]
    assert texts_of(open_source(photos, text=suffix, subset=[3, 0])) == ["text of b/10", "text of a/1.x"]


def test_a_json_file_without_a_field_is_refused_with_its_fields(tmp_path: Path) -> None:
    members = [("0.png", PNG), ("0.cls", b"1"), ("0.json", json.dumps({"caption": "a", "width": 3}).encode())]
    folder, listed = tmp_path / "photos", tmp_path / "list"
    for where, content in (folder, members[2][1]), (listed, b'["a", "b"]'):
        where.mkdir()
        (where / "0.png").write_bytes(PNG)
        (where / "0.json").write_bytes(content)
    tar, message = write_tar(tmp_path / "t.tar", members), "pass text='json:FIELD'; the fields are 'caption', 'width'$"
    for options in ({}, {"label": "cls"}, {"label": "json:width"}, {"missing_text": "leave_out"}):
        with pytest.raises(ValueError, match=message):
            open_source(tar, text="json", **options)
    with pytest.raises(ValueError, match=message):
        open_source(folder, text=".JSON")
    with pytest.raises(ValueError, match=r"pass text='json:FIELD'; '0\.json' is not a JSON object"):
        open_source(listed, text="json")


@pytest.mark.parametrize("option", [{"text": "json:a"}, {"label": "json:a"}], ids=str)
def test_a_name_that_occurs_twice_in_json_has_no_value(tmp_path: Path, option: dict[str, Any]) -> None:
    (field,) = option
    other = {"label": None} if field == "text" else {}
    fine, twice = b'{"b": {"x": 1, "x": 2}, "a": "one", "c": 1, "c": 2}', b'{"a": "one", "b": 1, "a": "two"}'
    folder = tmp_path / "photos"
    folder.mkdir()
    for content, refused in ((fine, False), (twice, True)):
        places: list[Any] = [write_tar(tmp_path / "t.tar", [("0.png", PNG), ("0.json", content)])]
        if field == "text":
            (folder / "0.png").write_bytes(PNG)
            (folder / "0.json").write_bytes(content)
            places.append(folder)
        for place in places:
            if refused:
                with pytest.raises(LoaderError, match=r"the field 'a' of .* is there twice"):
                    open_source(place, **option, **(other if place != folder else {}))
            else:
                open_source(place, **option, **(other if place != folder else {}))
    (tmp_path / "0.png").write_bytes(PNG)
    (tmp_path / "rows.jsonl").write_bytes(b'{"path": "0.png", "a": "one", "b": {"x": 1, "x": 2}, "a": "two"}')
    with pytest.raises(LoaderError, match="line 1: the name 'a' occurs twice in this line"):
        open_source(tmp_path / "rows.jsonl", **{field: "a"})


def test_broken_json_is_named_as_the_place_of_texts(tmp_path: Path) -> None:
    """Although labels are looked for in the same members."""
    tar = write_tar(tmp_path / "t.tar", [("0.png", PNG), ("0.json", b'{"caption": "a"')])
    with pytest.raises(LoaderError, match=r"not a JSON object with field 'caption'.*missing_text="):
        open_source(tar, text="json:caption")


def test_empty_texts_of_ones_own_are_served_with_a_warning(tmp_path: Path) -> None:
    data = np.zeros((3, 4, 4, 3), np.uint8), [0, 1, 2]
    for texts in (["a", "", " "], [["a"], [], []]):
        with pytest.warns(UserWarning, match=r"2 samples of 3 have no text, first .*1"):
            assert with_fields(data, text=texts).fields(np.arange(3))["text"] == texts
    with_fields(data, text=["a", "b", "c"], note=["", "x", ""])  # other fields may be empty


def test_missing_texts_of_files_are_refused_or_counted(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.png").write_bytes(PNG)
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    (tmp_path / "1.txt").unlink()
    (tmp_path / "3.txt").write_text(" \n")
    with pytest.raises(LoaderError, match=r"1\.png.*no text; 2 of 5 rows have none.*missing_text='leave_out'"):
        open_source(tmp_path, text="txt")
    with pytest.warns(UserWarning, match=r"2 samples without a text .*1\.png"):
        source = open_source(tmp_path, text="txt", missing_text="leave_out")
    assert texts_of(source) == ["text 0", "text 2", "text 4"]
    (tmp_path / "2.jpg").write_bytes(PNG)  # rule 1 of joins: no two samples share a text
    with pytest.raises(ValueError, match=r"two images have the name .*2\.jpg.*2\.png"):
        open_source(tmp_path, text="txt")


def refuse(message: str, spec: Any, **options: Any) -> None:
    with pytest.raises((LoaderError, ValueError), match=message):
        open_source(spec, **options)


def test_unsuitable_texts_are_refused_with_their_place(tmp_path: Path) -> None:
    def tar(name: str, *members: tuple[str, bytes]) -> Path:
        return write_tar(tmp_path / name, [("0.png", PNG), ("1.png", PNG), *members])

    good = ("0.txt", b"cat")
    refuse(r"0\.txt member|1\.png.*has no \.txt member", tar("a.tar", good), text="txt")
    refuse("1.png.*not text in UTF-8", tar("b.tar", good, ("1.txt", b"\xff")), text="txt")
    refuse("two members", tar("c.tar", good, ("1.txt", b"a"), ("1.txt", b"b")), text="txt")
    numbers = tar("d.tar", ("0.json", b'{"c": "cat"}'), ("1.json", b'{"c": 5}'))
    refuse("1.png.*'c'.*is 5, not a text", numbers, text="json:c")
    mixed = tar("e.tar", ("0.json", b'{"c": "cat"}'), ("1.json", b'{"c": ["a", "b"]}'))
    refuse("1.png.*a list of texts, but .* has one text", mixed, text="json:c")
    holes = tar("f.tar", ("0.json", b'{"c": ["cat", null]}'), ("1.json", b'{"c": ["a"]}'))
    refuse("0.png.*contains None", holes, text="json:c")
    refuse("text must be a suffix", numbers, text="a/b")
    refuse("no effect without text", numbers, missing_text="leave_out")
    refuse("has no option text", (np.zeros((2, 4, 4, 3), np.uint8), [0, 1]), text="txt")
    columns = write("parquet", tmp_path / "p", ["a", "b"], size=[1, 2])
    refuse("text must be a column of strings.*size", columns[0], text="size")
    refuse("text='size ' is not a column", write("csv", tmp_path / "q", ["a", "b"])[0], text="size ")


def test_texts_travel_with_the_data(tmp_path: Path) -> None:
    """Under views, in concat, with other labels, in another process; and they are part of the identity."""
    captions = [f"caption {number}" for number in range(6)]
    spec, options = write("tar", tmp_path / "one", captions, label=["b", "a", "b", "a", "b", "a"])
    source = open_source(spec, **options)
    assert source.describe().endswith("with text")
    other, _ = write("tar", tmp_path / "two", [*captions[:5], "another"], label=["b", "a", "b", "a", "b", "a"])
    assert open_source(other, **options).fingerprint != source.fingerprint
    assert open_source(spec, label="json:label").fingerprint != source.fingerprint
    both = concat([spec, other], **options)
    assert texts_of(both) == [*captions, *captions[:5], "another"]
    prices = with_labels(source, np.arange(6) / 2)
    assert texts_of(prices) == captions
    assert prices.targets(np.array([3])).tolist() == [1.5]
    limited = open_source(spec, **options, max_per_class=1)
    assert sorted(text[:8] for text in texts_of(limited)) == ["caption "] * 2
    moved = pickle.loads(pickle.dumps(source))
    assert texts_of(moved) == captions
    floats, more = write("csv", tmp_path / "three", captions, price=[0.5 * n for n in range(6)])
    priced = open_source(floats, **more)
    assert (texts_of(priced), priced.targets(np.arange(3)).tolist()) == (captions, [0, 0.5, 1])


@pytest.mark.parametrize("container", ["csv", "parquet", "arrow", "tar"])
def test_a_column_of_texts_as_labels_is_named_when_it_is_opened(tmp_path: Path, container: str) -> None:
    captions = [f"a photo of animal {number}" for number in range(40)]
    spec, options = write(container, tmp_path / "t", captions)
    label = options.pop("text")
    with pytest.warns(UserWarning, match="40 different names, such as 'a photo .*pass their place as text=") as caught:
        open_source(spec, label=label, **options)
    assert len(caught) == 1


def test_labels_that_are_classes_give_no_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    def open_labels(name: str, labels: list[Any], **options: Any) -> None:
        spec, _ = write("csv", tmp_path / name, ["x"] * len(labels), label=labels)
        open_source(spec, label="label", **options)

    open_labels("few", [f"class {number}" for number in range(12)])  # one photo per class
    open_labels("floats", [0.5 * number for number in range(40)])
    open_labels("ids", list(range(40)))
    names = [f"class {number}" for number in range(40)]
    open_labels("listed", names, classes=names)
    open_labels("pairs", [f"class {number // 2}" for number in range(40)])
    assert [str(warning.message) for warning in recwarn] == []
