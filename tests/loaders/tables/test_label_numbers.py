"""Labels of rows become class numbers: integers as they are, names in sorted order; what is neither names its row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock.loaders.tables.label_numbers import MAX_CLASSES, LabelNumbers
from penstock.loaders.tables.row_origin import RowOrigin
from penstock.pipelines.errors import LoaderError


def number(labels: Any, classes: Any = None, *, untyped: bool = False) -> tuple[list[int], tuple[bytes, ...]]:
    numbers = LabelNumbers(classes, untyped=untyped)
    kept = [numbers.number(label, RowOrigin(b"/x/train.csv", "line"), row) for row, label in enumerate(labels, start=1)]
    of_label, names = numbers.finish()
    return of_label[kept].tolist(), names


DIGITS = (b"0", b"1", b"2", b"3")
CASES: dict[str, tuple[Any, Any, bool, list[int], tuple[bytes, ...]]] = {
    "integers, with a gap": ([3, 0, 3], None, False, [3, 0, 3], DIGITS),
    "numpy's": (np.array([1, 3], np.int16), None, False, [1, 3], DIGITS),
    "a tensor's": (torch.tensor([1, 3]), None, False, [1, 3], DIGITS),
    "whole floats": ([1.0, 3.0, 1], None, False, [1, 3, 1], DIGITS),
    "truth values": ([True, False, np.True_], None, False, [1, 0, 1], DIGITS[:2]),
    "names": (["dog", "cat", "dog"], None, False, [1, 0, 1], (b"cat", b"dog")),
    "names that are bytes": ([b"dog", "cat"], None, False, [1, 0], (b"cat", b"dog")),
    "names of digits stay names where strings are strings": (["10", "9"], None, False, [0, 1], (b"10", b"9")),
    "digits of a table": (["3", "0", "1.0"], None, True, [3, 0, 1], DIGITS),
    "names of a table": (["3", "x"], None, True, [0, 1], (b"3", b"x")),
    "words that are floats to Python": (["nan", "inf"], None, True, [1, 0], (b"inf", b"nan")),
    "numbers with names": ([1, 0], ["a", "b", "c"], False, [1, 0], (b"a", b"b", b"c")),
    "an order of names": (["a", "b"], ["b", "z", "a"], False, [2, 0], (b"b", b"z", b"a")),
    "digits of a table that classes list": (["7", "3"], ["7", "3"], True, [0, 1], (b"7", b"3")),
    "digits of a table that classes do not list": (["1", "0"], ["a", "b"], True, [1, 0], (b"a", b"b")),
    "fractions that classes list": (["1.5", "2"], ["1.5", "2"], True, [0, 1], (b"1.5", b"2")),
    "not UTF-8": (["b", "a\udcff"], None, True, [1, 0], (b"a\xff", b"b")),
}


@pytest.mark.parametrize("case", CASES)
def test_labels_become_class_numbers(case: str) -> None:
    labels, classes, untyped, expected, names = CASES[case]
    assert number(labels, classes, untyped=untyped) == (expected, names)


WRONG: dict[str, tuple[list[Any], Any, bool, str]] = {
    "negative": ([0, -1], None, False, "line 2: label -1 is negative"),
    "negative in a table": (["0", "-1"], None, True, "line 2: label -1 is negative"),
    "an identifier": ([0, MAX_CLASSES], None, False, "line 2: label 1048576 is too large.*strings"),
    "an identifier in a table": (["4711000111"], None, True, "line 1: label 4711000111 is too large"),
    "a fraction": ([1, 0.5], None, False, "line 2: label 0.5 is not a class: regression targets go to with_labels"),
    "a fraction in a table": (["1", "0.5"], None, True, "line 2: label 0.5 is not a class: regression"),
    "none": ([0, None], None, False, "line 2: no label"),
    "an empty cell": (["a", ""], None, True, "line 2: no label"),
    "not a number": ([0, float("nan")], None, False, "line 2: no label"),
    "several": ([[0, 1]], None, False, "line 1: a label must be one class number or name, got"),
    "an array": ([np.zeros(2)], None, False, "line 1: a label must be one class"),
    "names and numbers": ([0, "a", 1], None, False, "line 2: label 'a' next to label 0: names and numbers"),
    "a number without name": ([0, 2], ["a", "b"], False, "line 2: label 2 has no name: classes has 2"),
    "an unknown name": (["a", "c"], ["a", "b"], False, "line 2: label 'c' is not one of classes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_class_names_its_row(case: str) -> None:
    labels, classes, untyped, text = WRONG[case]
    with pytest.raises(LoaderError, match=rf"E-FORMAT.*train\.csv {text}") as caught:
        number(labels, classes, untyped=untyped)
    assert "astype" not in str(caught.value)


def test_no_label_at_all_is_one_class() -> None:
    labels = LabelNumbers()
    assert (labels.finish()[1], labels.flat) == ((b".",), True)
    with pytest.raises(ValueError, match="classes must come with labels"):
        LabelNumbers(["a"]).finish()


@pytest.mark.parametrize("classes", ["cat", [], [1, 2]])
def test_classes_are_names(classes: Any) -> None:
    with pytest.raises(ValueError, match="classes must"):
        LabelNumbers(classes)


def test_a_name_twice_is_only_a_name() -> None:
    assert number([0, 1], ["crane", "crane"]) == ([0, 1], (b"crane", b"crane"))
    with pytest.raises(ValueError, match="a name occurs twice"):
        number(["crane"], ["crane", "crane"])
