"""Class names that are probably mistakes give a warning, from every kind of data; others give none."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_folder import photo
from photo_tables import write_arrow
from range_server import RangeServer
from source_kinds import KINDS, TABLES, Data, Rows, Where, serve_kinds

from penstock.loaders import Boxes, concat, mix, open_source, with_fields, with_labels
from penstock.loaders.data.labels.class_names import warn_of_classes
from penstock.pipelines.errors import LoaderError

PHOTOS = [photo(number) for number in range(6)]
NAMES = ["Cat", "None", "cat", "cat", "dog", "dog"]
PIXELS = np.zeros((40, 8, 8, 3), np.uint8)
# The classes are those of the user's own program, or were checked when the cache was built.
KNOWN = {"own source", "hdf5", "hdf5 by URL"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    with serve_kinds(tmp_path_factory.mktemp("kinds")) as server:
        yield server


def warned(action: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    return sorted(str(each.message) for each in seen)


def warned_of(classes: list[str], labels: Any = None) -> list[str]:
    """Return the warnings about labels; each class has 100 samples by default."""
    names = [name.encode() for name in sorted(classes)]
    numbers = np.arange(100 * len(names)) % len(names) if labels is None else np.asarray(labels)
    return warned(lambda: warn_of_classes(names, len(numbers), lambda: numbers))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_warns_unless_the_classes_are_listed(server: RangeServer, kind: str) -> None:
    rows = Rows.of(PHOTOS, NAMES, parts=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = Data(server, kind, rows)
    found = warned(data.open)
    if kind in KNOWN:
        assert found == []
        return
    missing, spelling = found
    assert missing.startswith("class 'None'")
    assert "may mean that the label is missing" in missing
    assert "classes 'Cat' and 'cat' differ only in case" in spelling
    assert warned(data.open) == found  # also from a saved index
    assert warned(lambda: data.open(classes=sorted(set(NAMES)))) == []


@pytest.mark.parametrize(
    "mark", ["NA", "None", "N/A", "null", "<NA>", "NaN", "nan", "?", "-", "--", "\u2014", "\u200b"]
)
def test_a_text_for_a_missing_label_is_a_class_or_missing_as_the_user_says(tmp_path: Path, mark: str) -> None:
    for container in ("csv", "jsonl", "parquet", "feather", "list", "tar", "dataset"):
        folder = tmp_path / container
        folder.mkdir()
        data, _ = TABLES[container](Where(folder), Rows.of(PHOTOS[:4], ["cat", mark, "dog", "dog"]))

        def opened(data: Any = data, **options: Any) -> Any:
            return open_source(data, **options)

        if mark.lower() in ("nan", "<na>"):  # never a class by itself
            with pytest.raises(LoaderError, match=r"nearly a number.*; a missing label is an empty cell, not "):
                opened()
        else:
            (text,) = warned(opened)
            assert "(1 of 4 samples) may mean that the label is missing: list the classes with classes=" in text
        assert warned(lambda: opened(classes=["cat", "dog", mark])) == []
        with pytest.raises(LoaderError, match=r"no label \(.* is not in classes\): fix=.*missing_labels='leave_out'"):
            opened(classes=["cat", "dog"])
        with pytest.warns(UserWarning, match="left out: 1 (row|sample) without a label"):
            source = opened(classes=["cat", "dog"], missing_labels="leave_out")
        assert source.labels(np.arange(len(source))).tolist() == [0, 1, 1]


def test_a_text_for_a_missing_label_is_missing_among_numbers(tmp_path: Path) -> None:
    def write(labels: list[Any]) -> Any:
        return TABLES["csv"](Where(tmp_path), Rows.of(PHOTOS[:3], labels))[0]

    for labels in (["NA", 0.5, 2], [0.5, "NA", 2], [1, 2, "NA"]):
        with pytest.raises(LoaderError, match=r"is a n.*; a missing label is an empty cell, not 'NA'"):
            open_source(write(labels), rescan=True)
        with pytest.raises(LoaderError, match=r"no label \('NA' is not a number\)"):
            open_source(write(labels), label="label:float", rescan=True)
        with pytest.warns(UserWarning, match="left out: 1 row without a label"):
            source: Any = open_source(write(labels), label="label:float", missing_labels="leave_out", rescan=True)
        assert source.targets(np.arange(2)).tolist() == [label for label in labels if label != "NA"]


@pytest.mark.parametrize(
    "classes",
    [
        ["none", "mild", "severe"],
        ["+", "-"],
        [".", "-", "?", "a", "b"],  # characters
        ["-", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"],  # of licence plates
        ["nan bread", "Nancy", "A-"],
        ["no", "yes"],
        ["\U0001f600", "\U0001f621"],
        ["."],  # data without labels
    ],
)
def test_other_names_do_not_mean_missing_labels(classes: list[str]) -> None:
    assert warned_of(classes) == []


@pytest.mark.parametrize(
    ("classes", "pair"),
    [
        (["X", "x"], "'X' and 'x'"),
        (["cat", "cat ", "dog"], "'cat' and 'cat '"),
        (["hot dog", "hot  dog"], "'hot  dog' and 'hot dog'"),
        (["hot dog", "hot\u00a0dog"], r"'hot dog' and 'hot\xa0dog'"),
        (["caf\u00e9", "cafe\u0301"], r"'cafe\u0301' and 'caf\xe9'"),
        (["cat", "\ufeffcat"], r"'cat' and '\ufeffcat'"),
        (["Dog", "dog", "DOG", "Cat", "cat"], "'Cat' and 'cat', and 1 more pair,"),
        (["M", "m", "F", "f"], "'F' and 'f', and 1 more pair,"),
    ],
)
def test_spellings_of_one_name_are_named(classes: list[str], pair: str) -> None:
    (text,) = warned_of(classes)
    assert text.startswith(f"classes {pair} differ only in case, white space or Unicode form: give them one name")


@pytest.mark.parametrize(
    "classes",
    [
        ["Masse", "Ma\u00dfe"],  # two German words
        ["hotdog", "hot dog"],
        ["resume", "r\u00e9sum\u00e9"],
        [*"abcdefgABCDEFG"],  # characters
        ["1", "01", "1 "],  # class numbers have no spellings
    ],
)
def test_different_names_are_not_spellings(classes: list[str]) -> None:
    assert warned_of(classes) == []


def test_random_spellings_are_found_and_other_names_are_not() -> None:
    rng = np.random.default_rng(0)
    words = ["ab\u00e9 d", "north sea", "\u00d6lfa\u00dfrest", "k9 unit", "\u1e63\u0307x"]
    for _ in range(200):
        word = str(rng.choice(words))
        other = unicodedata.normalize(rng.choice(["NFC", "NFD"]), word)
        other = other.upper() if rng.random() < 0.3 and "\u00df" not in word else other
        other = other.replace(" ", str(rng.choice([" ", "  ", "\t", "\u00a0"])))
        other += str(rng.choice(["", " ", "\u200b"]))
        if other in words:
            continue
        found = warned_of([*words, other])
        assert ["differ only" in text for text in found] == [True], (word, other)
    assert warned_of(words) == []


def test_spellings_of_two_sources_are_named_once() -> None:
    one, two = (open_source((PIXELS[:4], labels)) for labels in (["cat", "dog"] * 2, ["Cat", "dog"] * 2))
    for join in (lambda: concat([one, two]), lambda: mix({"a": (one, 1), "b": (two, 1)})):
        (text,) = warned(join)
        assert text.startswith("joined sources: classes 'Cat' and 'cat' differ")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both = open_source((PIXELS[:4], ["cat", "Cat"] * 2))
    assert warned(lambda: concat([both, two])) == []  # it was said of the first source
    assert warned(lambda: concat([one, two], classes=["cat", "dog", "Cat"])) == []


def test_named_labels_and_sets_warn_with_their_name() -> None:
    labels = {"kind": ["cat", "NA"] * 20, "tags": [["Sea"], ["sea", "sky"]] * 20, "price": [0.5, 1.5] * 20}
    one, two = warned(lambda: with_labels(PIXELS_OF_ONE, labels))
    assert one.startswith("kind: class 'NA' (20 of 40 samples)")
    assert two.startswith("tags: classes 'Sea' and 'sea' differ")
    listed = {"kind": ["cat", "NA"], "tags": ["Sea", "sea", "sky"]}
    assert warned(lambda: with_labels(PIXELS_OF_ONE, labels, classes=listed)) == []


def test_classes_of_boxes_warn_too() -> None:
    corners, names = [[(0, 0, 4, 4)]] * 40, [["cat"], ["Cat"], ["NA"], ["dog"]] * 10
    missing, spelling = warned(lambda: with_fields(PIXELS_OF_ONE, boxes=Boxes(corners, names)))
    assert missing.startswith(
        "boxes: class 'NA' may mean that the label is missing: if it is a class, list the classes"
    )
    assert spelling.startswith("boxes: classes 'Cat' and 'cat' differ")
    assert spelling.endswith("or list all classes with names= if not")
    listed = ["cat", "Cat", "NA", "dog"]
    assert warned(lambda: with_fields(PIXELS_OF_ONE, boxes=Boxes(corners, names, names=listed))) == []


PIXELS_OF_ONE = (PIXELS, np.zeros(40, np.int64))


@pytest.mark.parametrize(
    ("labels", "is_wrong"),
    [
        (range(40), False),  # one sample per class
        (range(1, 41), False),
        (range(0, 160, 10), False),  # few samples of many classes
        (range(0, 600, 15), False),
        ([7919 * number for number in range(40)], True),  # identifiers
        (range(0, 400_000, 25_000), True),  # 16 prices
        ([*range(0, 400_000, 25_000)] * 3, False),  # each occurs three times
        (range(0, 40_000, 20), True),  # 2,000 identifiers, none twice
        (range(0, 400, 2), False),  # half of the classes, once each
    ],
)
def test_numbers_that_are_not_class_numbers_are_named(labels: Any, is_wrong: bool) -> None:
    numbers = np.array(labels)
    found = warned_of_numbers(numbers)
    assert [f"{len(numbers):,} different numbers" in text for text in found] == [True] * is_wrong


def warned_of_numbers(numbers: Any) -> list[str]:
    names = [b"%d" % number for number in range(int(numbers.max()) + 1)]
    return warned(lambda: warn_of_classes(names, len(numbers), lambda: numbers))


def test_a_small_part_of_data_with_many_classes_gives_no_warning() -> None:
    """Random class numbers, as in the first rows of a large shuffled table."""
    rng = np.random.default_rng(0)
    for num_classes in (10, 1000, 10_000, 21_841, 60_000):
        for num_samples in (16, 40, 100, 1000, 5000):
            assert warned_of_numbers(rng.integers(0, num_classes, num_samples)) == [], (num_classes, num_samples)


def test_identifiers_in_text_are_numbers_too(tmp_path: Path) -> None:
    labels = [f"{7919 * number:09}" for number in range(40)]
    data = [(f"{tmp_path}/{number}.png", label) for number, label in enumerate(labels)]
    for path, _ in data:
        Path(path).write_bytes(b"x")
    (text,) = warned(lambda: open_source(data))
    assert "40 different numbers, which make 308,842 classes: for values to predict pass label='COLUMN:float'" in text
    assert warned(lambda: open_source(data, classes=sorted(labels))) == []


def test_names_that_are_mostly_different_are_texts() -> None:
    assert "21 different names" in warned_of([f"class {n}" for n in range(21)], np.minimum(np.arange(40), 20))[0]
    assert warned_of([f"class {n}" for n in range(20)], np.arange(40) % 20) == []


@pytest.mark.parametrize("form", ["dataset", "saved", "arrow", "parquet"])
def test_classes_that_the_data_lists_give_no_warning(tmp_path: Path, form: str) -> None:
    """Hugging Face's ClassLabel: its names are meant, although some may look wrong or be rare."""
    import datasets

    names = ["None", "mild", "Mild", *(f"class {number}" for number in range(100))]
    features = {"image": datasets.Value("binary"), "label": datasets.ClassLabel(names=names)}
    rows = {"image": [PHOTOS[0]] * 40, "label": list(range(0, 80, 2))}
    data = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    spec: Any = data if form == "dataset" else tmp_path / f"a.{form}"
    if form == "saved":
        data.save_to_disk(spec)
    elif form == "parquet":
        data.to_parquet(spec)
    elif form == "arrow":
        write_arrow(spec, data.with_format("arrow")[:], stream=False, rows=10)
    for _ in range(2):
        assert warned(lambda: open_source(spec)) == []
    assert open_source(spec).classes[:2] == (b"None", b"mild")
