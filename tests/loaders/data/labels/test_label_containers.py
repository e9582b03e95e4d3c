"""Random label columns in nine containers: all serve the same labels and classes, or all refuse them."""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from odd_images import encoded
from PIL import Image
from source_kinds import TABLES, Rows, Where

from penstock.loaders import open_source, with_labels
from penstock.loaders.data.sources.contract import Source, has_targets
from penstock.pipelines.errors import LoaderError

NUM_COLUMNS = 60  # each in all containers; 1,500 take a minute
NAMES = ["ant", "bee", " bee", "cat ", "3d", "10-20", "None", "True", "false", "a, b", 'say "x"', "\u00e9"]
DIGITS = ["0", "1", "2", " 3", "04", "+5", "10", "2.0", "0.5", "1e1"]
NEARLY = ["1,5", "5%", "nan", "-inf", "1 2", "[1 2]", "1_000", "\uff15", "$3"]
MARKS = ["NA", "None", "nan"]  # missing where they cannot be classes
LISTS = ["ant", "bee", "True", "10", "0", "1", "?", "0.5"]
Column = list[Any]
IMAGE = encoded(Image.new("RGB", (2, 2)), "PNG")
Found = tuple[str, list[Any], list[str]]  # type, labels, classes; None if refused


def draw_column(rng: random.Random) -> Column:
    """Draw a column of one type, as in Parquet and Arrow, optionally with missing or unsuitable values."""
    pools: list[Callable[[], Any]] = [
        lambda: rng.randrange(12),
        lambda: rng.choice([0.0, 1.0, 2.0, 0.5, -1.0, 7.25]),
        lambda: rng.choice(NAMES),
        lambda: rng.choice(DIGITS),
        lambda: str(rng.randrange(12)),
        lambda: rng.random() < 0.5,
        lambda: rng.choice(["True", "False"]),
        lambda: [rng.randrange(5) for _ in range(2)],
        lambda: rng.sample(["ant", "bee", "10", "9"], rng.randrange(3)),
    ]
    draw = rng.choice(pools)
    column = [draw() for _ in range(rng.randrange(2, 9))]
    kind = type(column[0])
    odd: list[Any] = [None]
    odd += {int: [-1, -2], float: [math.nan, -3.0], str: ["", " ", "-1", "NA", *NEARLY, "7", "bee"], list: [[]]}.get(
        kind, []
    )
    for _ in range(rng.choice([0, 0, 1, 2])):
        column[rng.randrange(len(column))] = rng.choice(odd)
    return column


def draw_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["classes"] = rng.sample(LISTS, rng.randrange(2, len(LISTS) + 1))
    if rng.random() < 0.3:
        options["missing_labels"] = "leave_out"
    if rng.random() < 0.2:
        options["label"] = "label:float"
    return options


# The reference.


def is_numeric(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) is not None


def read(value: Any, listed: list[str], as_float: bool) -> Any:
    """Return None for a missing value, else an int, a float, a list, or a name as (name,)."""
    if value is None or value != value or isinstance(value, list):
        return None if not isinstance(value, list) else value
    text = value.strip() if isinstance(value, str) else str(value)
    if not text or ((as_float or listed) and text in MARKS and text not in listed):
        return None
    if as_float:
        truth = {"True": 1.0, "False": 0.0, "true": 1.0, "false": 0.0}
        if text not in truth and not is_numeric(text):
            raise ValueError(text)
        return truth[text] if text in truth else float(text)
    if text in listed:
        return (text,)
    if is_numeric(text):
        number = float(text)
        if any(map(is_numeric, listed)):  # all labels are names
            whole = str(int(number)) if number.is_integer() else text
            return None if number == -1 else (whole if whole in listed else text,)
        return number if {".", "e"} & set(text) else int(text)
    if value in NEARLY:
        raise ValueError(text)
    return (text,)


def reference(values: Column, classes: list[str], leave_out: bool, as_float: bool) -> Found:
    """Return the expected labels. Raise ValueError if they must be refused."""
    if as_float and classes:
        raise ValueError("floats have no classes")
    labels = [read(value, classes, as_float) for value in values]
    kinds = {type(label) for label in labels if label is not None}
    if kinds == {int, float} or kinds == {float}:
        if classes:
            if any(label is not None and not float(label).is_integer() for label in labels):
                raise ValueError("a fraction")
            labels, kinds = [None if label is None else int(label) for label in labels], {int}
        else:
            labels, kinds = [None if label is None else float(label) for label in labels], {float}
    if kinds == {int} and min(label for label in labels if label is not None) == -1:
        labels = [None if label == -1 else label for label in labels]
    present = [label for label in labels if label is not None]
    if not present or len(kinds) > 1 or (len(present) < len(labels) and not leave_out):
        raise ValueError("missing or mixed")
    kind = kinds.pop()
    if kind is int:
        if min(present) < 0 or (classes and max(present) >= len(classes)):
            raise ValueError("no class number")
        return "int64", present, classes or [str(n) for n in range(max(present) + 1)]
    if kind is float:
        return "float32", present, []
    if kind is tuple:
        names = [name for (name,) in present]
        truth = {"true": 1, "false": 0}
        if all(name.lower() in truth for name in names) and not (classes and set(names) <= set(classes)):
            return "int64", [truth[name.lower()] for name in names], classes or ["False", "True"]
        known = classes or sorted(set(names))
        return "int64", [known.index(name) for name in names], known
    members = {type(member) for label in present for member in label}
    if as_float or len(members) > 1:
        raise ValueError("lists")
    if members == {int}:
        if len({len(label) for label in present}) > 1 or (classes and len(classes) != len(present[0])):
            raise ValueError("lengths")
        return "float32", present, classes
    names = {member for label in present for member in label}
    known = classes or sorted(names, key=int if all(map(str.isdigit, names)) else str)
    if not names <= set(known) or not known:
        raise ValueError("names")
    return "float32", [[int(name in label) for name in known] for label in present], known


CONTAINERS = ["csv", "tsv", "jsonl", "parquet of paths", "parquet", "feather", "frame", "list", "dataset"]


def describe(source: Source) -> Found:
    everything = np.arange(len(source))
    if has_targets(source):
        found: Any = source.targets(everything)
        return str(found.dtype), found.tolist(), [name.decode() for name in source.classes]
    found = source.labels(everything)
    return str(found.dtype), found.tolist(), [name.decode() for name in source.classes]


def outcome(action: Callable[[], Found]) -> Found | None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = action()
        except (LoaderError, ValueError):
            return None
    known = ("left out", "may mean that the label is missing", "listed several times")
    assert all(any(each in str(w.message) for each in known) for w in seen), [str(w.message) for w in seen]
    return found


def differences(tmp: Path, number: int) -> list[str]:
    rng = random.Random(number)
    column, options = draw_column(rng), draw_options(rng)
    leave_out, as_float = "missing_labels" in options, "label" in options
    right = outcome(lambda: reference(column, options.get("classes", []), leave_out, as_float))
    wrong, rows = [], Rows([IMAGE] * len(column), {"label": column}, ["1.png"] * len(column))
    for container in CONTAINERS:
        own = dict(options)
        if container == "list" and own.pop("label", None):
            continue  # a list does not have columns
        try:
            data, _ = TABLES[container](Where(tmp), rows)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            continue  # the container does not have this type
        if container in CONTAINERS[:4]:
            own["rescan"] = True
        found = outcome(lambda data=data, own=own: describe(open_source(data, **own)))  # type: ignore[misc]
        if found != right:
            wrong.append(f"{number} {container} {column} {options}: {found}, not {right}")
    if not leave_out and not as_float and not any(value is None for value in column):
        found = outcome(
            lambda: describe(with_labels([tmp / "data/1.png"] * len(column), column, classes=options.get("classes")))
        )
        if found != right:
            wrong.append(f"{number} with_labels {column} {options}: {found}, not {right}")
    return wrong


def test_a_column_gives_the_same_labels_in_every_container(tmp_path: Path) -> None:
    wrong = [text for number in range(NUM_COLUMNS) for text in differences(tmp_path, number)]
    assert not wrong, "\n".join(wrong[:20])


def test_the_drawn_columns_include_served_and_refused_ones() -> None:
    """The reference refuses some columns, serves some of each type, and some have classes."""
    found = []
    for number in range(NUM_COLUMNS):
        rng = random.Random(number)
        column, options = draw_column(rng), draw_options(rng)
        leave_out, as_float = "missing_labels" in options, "label" in options
        found.append(outcome(lambda: reference(column, options.get("classes", []), leave_out, as_float)))  # noqa: B023
    kinds = [None if each is None else (each[0], bool(each[2])) for each in found]
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    assert min(counts[None], counts["int64", True], counts["float32", False], counts["float32", True]) > 1, counts
