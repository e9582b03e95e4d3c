"""Labels of rows: which become class numbers, numbers, vectors and sets; what is none of these names its row."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from penstock.loaders.labels.class_numbers import MAX_CLASSES
from penstock.loaders.labels.label_columns import LabelRows
from penstock.loaders.labels.label_values import split_classes
from penstock.loaders.labels.row_origin import blame_rows
from penstock.pipelines.errors import LoaderError


def number(labels: Any, classes: Any = None, *, untyped: bool = False) -> tuple[list[int], tuple[bytes, ...]]:
    rows = LabelRows(list(classes) if classes else None, untyped=untyped)
    for row, label in enumerate(labels, start=1):
        rows.add(label, blame_rows(b"/x/train.csv", "line"), row)
    found = rows.finish()[""]
    assert found.are_classes
    return found.values.tolist(), found.classes


DIGITS = (b"0", b"1", b"2", b"3")
CASES: dict[str, tuple[Any, Any, bool, list[int], tuple[bytes, ...]]] = {
    "integers, with a gap": ([3, 0, 3], None, False, [3, 0, 3], DIGITS),
    "numpy's": (np.array([1, 3], np.int16), None, False, [1, 3], DIGITS),
    "a tensor's": (torch.tensor([1, 3]), None, False, [1, 3], DIGITS),
    "whole floats with names": ([1.0, 3.0, 1], "abcd", False, [1, 3, 1], (b"a", b"b", b"c", b"d")),
    "truth values": ([True, False, np.True_], None, False, [1, 0, 1], DIGITS[:2]),
    "names": (["dog", "cat", "dog"], None, False, [1, 0, 1], (b"cat", b"dog")),
    "names that are bytes": ([b"dog", "cat"], None, False, [1, 0], (b"cat", b"dog")),
    "names of digits stay names where strings are strings": (["10", "9"], None, False, [0, 1], (b"10", b"9")),
    "digits of a table": (["3", "0", "01"], None, True, [3, 0, 1], DIGITS),
    "whole floats of a table with names": (["1.0", "0"], "ab", True, [1, 0], (b"a", b"b")),
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


OTHERS: dict[str, tuple[Any, bool, Any, tuple[bytes, ...]]] = {
    "floats": ([0.5, 2, np.float32(3)], False, [0.5, 2, 3], ()),
    "whole floats": ([2.0, 3.0], False, [2, 3], ()),
    "floats after integers": ([2, 3, 2, 0.5], False, [2, 3, 2, 0.5], ()),
    "decimals": ([Decimal("0.5"), Decimal(2)], False, [0.5, 2], ()),
    "fractions of a table": (["3", "3", "0.5", "1e1", "-4"], True, [3, 3, 0.5, 10, -4], ()),
    "whole floats of a table": (["3.0", "2"], True, [3, 2], ()),
    "vectors": (
        [[1, 2], (0.5, 3), np.array([4, 5]), torch.tensor([6, 7])],
        False,
        [[1, 2], [0.5, 3], [4, 5], [6, 7]],
        (),
    ),
    "vectors of a table": (["[1, 2]", "[0.5, 3]"], True, [[1, 2], [0.5, 3]], ()),
    "sets": ([{"b"}, [], ("a", b"b")], False, [[0, 1], [0, 0], [1, 1]], (b"a", b"b")),
    "sets of a table": (["[]", '["b", "a"]'], True, [[0, 0], [1, 1]], (b"a", b"b")),
    "many classes": (
        [[str(n)] for n in range(10, 21)],
        False,
        np.eye(11).tolist(),
        tuple(b"%d" % n for n in range(10, 21)),
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_labels_of_other_kinds(case: str) -> None:
    labels, untyped, expected, classes = OTHERS[case]
    rows = LabelRows(untyped=untyped)
    for row, label in enumerate(labels):
        rows.add({"x": label, "y": row}, blame_rows(), row)
    found = rows.finish()
    served = found["x"].serve(np.arange(len(labels)))
    assert (served.dtype, served.tolist(), found["x"].classes) == (np.float32, expected, classes)
    assert found["y"].serve(np.arange(2)).tolist() == [0, 1]


def test_classes_of_several_labels() -> None:
    rows = LabelRows({"x": ["b", "a"], "z": ["c"]})
    rows.add({"x": ["a"], "y": 0}, blame_rows(), 1)
    with pytest.raises(ValueError, match=r"classes has names for \['z'\]"):
        rows.finish()
    rows = LabelRows({"x": ["b", "a"]})
    rows.add({"x": ["a"], "y": 0}, blame_rows(), 1)
    assert rows.finish()["x"].serve(np.arange(1)).tolist() == [[0, 1]]
    rows = LabelRows(["b", "a"])
    rows.add({"x": ["a"], "y": 0}, blame_rows(), 1)
    with pytest.raises(ValueError, match="classes must be a dict by the names of the labels"):
        rows.finish()


WRONG: dict[str, tuple[list[Any], Any, bool, str]] = {
    "negative": ([0, -1], None, False, "line 2: label -1 is negative"),
    "negative in a table": (["0", "-1"], None, True, "line 2: label -1 is negative"),
    "an identifier": ([0, MAX_CLASSES], None, False, "line 2: label 1048576 is too large.*strings"),
    "an identifier in a table": (["4711000111"], None, True, "line 1: label 4711000111 is too large"),
    "a fraction with classes": ([1, 0.5], ["a", "b"], False, "line 2: label 0.5 is not a class.*leave out classes"),
    "a fraction in a table with classes": (["1", "0.5"], ["a", "b"], True, "line 2: label 0.5 is not a class"),
    "none": ([0, None], None, False, "line 2: no label"),
    "an empty cell": (["a", ""], None, True, "line 2: no label"),
    "not a number": ([0, float("nan")], None, False, "line 2: no label"),
    "an array": ([np.zeros((2, 2))], None, False, "line 1: a label must be a list of numbers or names, got"),
    "an object": ([object()], None, False, "line 1: a label must be a class, a number, or a list"),
    "a name among numbers": ([0.5, 1, "a"], None, False, "line 3: label 'a' next to label 0.5: their kinds are mixed"),
    "a number among names": (["a", 0.5], None, False, "line 2: label 0.5 next to label 'a': their kinds are mixed"),
    "a typed digit among numbers": (["1", 0.5], None, False, "line 2: label 0.5 next to label '1'"),
    "a word among the numbers of a table": (["1", "0.5", "n/a"], None, True, "line 3: label 'n/a' next to label '0.5'"),
    "numbers of a table after a word": (["n/a", "0.5"], None, True, "line 2: label '0.5' next to label 'n/a'"),
    "infinite": ([0.5, float("inf")], None, False, "line 2: label inf is not a finite number"),
    "too large for float32": (["0.5", "1e39"], None, True, r"line 2: label 1e\+39 is not a finite number"),
    "a vector of another length": ([[1, 2], [1]], None, False, "line 2: a vector of 1 numbers, the first one has 2"),
    "a vector with a nan": ([[1, float("nan")]], None, False, r"line 1: label \[1.0, nan\] is not a finite"),
    "a vector after a number": ([0.5, [1]], None, False, r"line 2: label \[1\] next to label 0.5"),
    "names after a vector": ([[1], ["a"]], None, False, r"line 2: label \['a'\] next to label \[1\]"),
    "a set of numbers": ([{1, 2}], None, False, "line 1: a label must be a list of numbers or names"),
    "other names of labels": ([{"a": 1}, {"b": 1}], None, False, r"line 2: labels \['b'\], the first row has \['a'\]"),
    "one label after several": ([{"a": 1}, 1], None, False, r"line 2: labels \[''\], the first row has \['a'\]"),
    "one of several": ([{"a": 1}, {"a": None}], None, False, "line 2: a: no label"),
    "a member that is no class": ([["a"], ["c"]], ["a", "b"], False, "line 2: label 'c' is not one of classes"),
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
    numbers, classes, others = split_classes(LabelRows().finish(), 2)
    assert (numbers.tolist(), classes, others) == ([0, 0], (b".",), {})
    with pytest.raises(ValueError, match="classes must come with labels"):
        LabelRows(["a"]).finish()


@pytest.mark.parametrize("classes", ["cat", [], [1, 2], {"a": "cat"}])
def test_classes_are_names(classes: Any) -> None:
    with pytest.raises(ValueError, match="classes must"):
        LabelRows(classes)


def test_a_name_twice_is_only_a_name() -> None:
    assert number([0, 1], ["crane", "crane"]) == ([0, 1], (b"crane", b"crane"))
    with pytest.raises(ValueError, match="a name occurs twice"):
        number(["crane"], ["crane", "crane"])
