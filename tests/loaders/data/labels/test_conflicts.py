"""An image that a list contains several times with different labels gives a warning, from every list and table."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from odd_images import encoded
from PIL import Image
from source_kinds import TABLES, Rows, Where

from penstock.loaders import open_source, with_labels

LISTS = ["csv", "tsv", "jsonl", "parquet of paths", "frame", "list"]  # rows of paths
PICTURE = encoded(Image.new("RGB", (2, 2)), "PNG")
TEXT = "listed several times with different labels, such as "


def warned(action: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in seen]


def write(container: str, tmp: Path, names: list[str], labels: list[Any]) -> Any:
    return TABLES[container](Where(tmp), Rows([PICTURE] * len(names), {"label": labels}, names))[0]


@pytest.mark.parametrize("container", LISTS)
@pytest.mark.parametrize(
    ("labels", "both"),  # of three images
    [
        (["cat", "dog", "cat"], "as 'cat' and as 'dog'"),
        ([0, 1, 0], "as '0' and as '1'"),
        ([4.56, 1.5, 0.5], "as 4.56 and as 1.5"),
        ([["sea"], ["sea", "sky"], ["sea"]], r"as \['sea'\] and as \['sea', 'sky'\]"),
        ([[1, 2], [1, 3], [1, 2]], r"as \[1.0, 2.0\] and as \[1.0, 3.0\]"),
    ],
)
def test_different_labels_of_one_file_are_named(tmp_path: Path, container: str, labels: list[Any], both: str) -> None:
    data = write(container, tmp_path, ["x/0.png", "x/0.png", "1.png", "2.png"], [*labels, labels[0]])
    for _ in range(2):  # also from a saved index
        with pytest.warns(UserWarning, match=rf"^1 image is {TEXT}'.*0.png' {both}: correct the rows if"):
            source = open_source(data)
    assert len(source) == 4  # each row is a sample


@pytest.mark.parametrize("container", LISTS)
def test_repeated_files_with_equal_labels_give_no_warning(tmp_path: Path, container: str) -> None:
    for labels in (["cat", "cat", "dog"], [0.5, 0.5, 1.5], [["sea"], ["sea"], []]):
        folder = tmp_path / str(labels[0])
        folder.mkdir()
        assert warned(lambda: open_source(write(container, folder, ["0.png", "0.png", "1.png"], labels))) == []  # noqa: B023


@pytest.mark.parametrize("container", LISTS)
def test_numbers_of_several_raters_give_no_warning(tmp_path: Path, container: str) -> None:
    names = [f"{number % 4}.png" for number in range(6)] + ["4.png"]  # two of five images have two rows
    for place, (labels, count) in enumerate((([0.5, 1.5] * 3, 1), ([[0.5, 1], [1, 1]] * 3, 1))):
        (tmp_path / str(place)).mkdir()
        of_most = write(container, tmp_path / str(place), names[:6], [*labels[:5], labels[0]])
        assert warned(lambda: open_source(of_most)) == []  # noqa: B023
        of_few = write(container, tmp_path / str(place), names, [*labels[:4], labels[0], labels[0], labels[0]])
        options: dict[str, Any] = {} if container in ("list", "frame") else {"rescan": True}
        found = warned(lambda: open_source(of_few, **options))  # noqa: B023
        assert [text.split()[0] for text in found] == [str(count)]


def test_several_questions_about_an_image_give_no_warning(tmp_path: Path) -> None:
    write("csv", tmp_path, ["0.png", "1.png"], ["a", "b"])
    rows = [
        ("0", "how many?", "two"),
        ("0", "what colour?", "red"),
        ("1", "how many?", "two"),
        ("0", "how many?", "two"),
    ]
    for more, count in (((), 0), ((("0", "how many?", "one"),), 1)):
        lines = [f"{tmp_path}/data/{name}.png,{text},{label}\n" for name, text, label in (*rows, *more)]
        (tmp_path / "t.csv").write_text("path,question,answer\n" + "".join(lines))
        found = warned(lambda: open_source(tmp_path / "t.csv", text="question", label="answer", rescan=True))
        assert len(found) == count
        assert all(text.startswith(f"1 image is {TEXT}") and "as 'two' and as 'one'" in text for text in found)


def test_other_ways_to_write_a_path_are_the_same_file(tmp_path: Path) -> None:
    write("csv", tmp_path, ["x/0.png", "y/0.png"], ["a", "b"])
    rows = [("x/0.png", "a"), ("./x//0.png", "b"), (f"{tmp_path}/data/x/0.png", "c"), ("y/0.png", "b")]
    (text,) = warned(lambda: open_source(rows, root=tmp_path / "data"))
    assert text.startswith(f"1 image is {TEXT}")
    assert warned(lambda: open_source([rows[0], rows[3]], root=tmp_path / "data")) == []


def test_named_labels_and_texts(tmp_path: Path) -> None:
    write("csv", tmp_path, ["0.png", "1.png"], ["a", "b"])
    paths = [f"{tmp_path}/data/{name}.png" for name in "001"]
    labels = [{"kind": "a", "price": 0.5}, {"kind": "b", "price": 1.5}, {"kind": "b", "price": 0.5}]
    (text,) = warned(lambda: open_source(list(zip(paths, labels, strict=True))))
    assert "as {'kind': 'a', 'price': 0.5} and as {'kind': 'b', 'price': 1.5}" in text
    (tmp_path / "t.csv").write_text("path,text,label\n" + "".join(f"{p},text {n},a\n" for n, p in enumerate(paths)))
    assert warned(lambda: open_source(tmp_path / "t.csv", text="text")) == []  # several captions per image
    (tmp_path / "t.csv").write_text("path,text\n" + "".join(f"{p},text {n}\n" for n, p in enumerate(paths)))
    assert warned(lambda: open_source(tmp_path / "t.csv", text="text")) == []


def test_new_labels_of_a_list_are_compared_too(tmp_path: Path) -> None:
    write("csv", tmp_path, [f"{number}.png" for number in range(5)], list("abcde"))
    paths = [f"{tmp_path}/data/{name}.png" for name in "0110234"]
    for one, other in ((0, 1), ("a", "b"), (0.5, 1.5), (["a"], ["b"])):
        for form in (lambda labels: labels, lambda labels: {"a": labels}):
            labels = [one, other, other, other, one, one, one]
            assert warned(lambda: with_labels(paths, form(labels)))[0].startswith(f"1 image is {TEXT}")  # noqa: B023
            labels[3] = one
            assert warned(lambda: with_labels(paths, form(labels))) == []  # noqa: B023
    assert warned(lambda: with_labels(tmp_path / "data", list("abcde"))) == []


def test_random_lists_give_the_count_of_a_reference(tmp_path: Path) -> None:
    rng = random.Random(0)
    for number in range(60):
        names = [f"{rng.choice('xyz')}/{rng.randrange(6)}.png" for _ in range(rng.randrange(1, 14))]
        labels = [rng.choice(["cat", "dog", None]) if number % 2 else rng.randrange(-1, 2) for _ in names]
        known: dict[str, set[Any]] = {}
        for name, label in zip(names, labels, strict=True):
            if label not in (None, -1):
                known.setdefault(name, set()).add(label)
        if not known:
            continue
        count = sum(len(several) > 1 for several in known.values())
        container = rng.choice(LISTS)
        options: dict[str, Any] = {} if container in ("list", "frame") else {"rescan": True}
        opened = partial(open_source, write(container, tmp_path, names, labels), missing_labels="leave_out", **options)
        found = [text for text in warned(opened) if TEXT in text]
        assert [text.split()[0] for text in found] == [str(count)] * bool(count), (names, labels)
