"""Labels of rows: class numbers, numbers, vectors and sets; other labels are refused with their row."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from penstock.loaders.data.labels.choose_columns import split_floats
from penstock.loaders.data.labels.class_numbers import MAX_CLASSES
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.row_errors import RowOrigin
from penstock.loaders.data.labels.stored_labels import split_classes
from penstock.pipelines.errors import LoaderError


def number(labels: Any, classes: Any = None, **options: Any) -> tuple[list[int], tuple[bytes, ...]]:
    rows = LabelRows(list(classes) if classes else None, **options)
    for row, label in enumerate(labels, start=1):
        rows.add(label, RowOrigin(b"/x/train.csv", "line"), row)
    found = rows.finish()[""]
    assert found.are_classes
    return found.values.tolist(), found.classes


DIGITS = (b"0", b"1", b"2", b"3")
BOOLEANS = (b"False", b"True")
CASES: dict[str, tuple[Any, Any, list[int], tuple[bytes, ...]]] = {
    "integers, with a gap": ([3, 0, 3], None, [3, 0, 3], DIGITS),
    "numpy's": (np.array([1, 3], np.int16), None, [1, 3], DIGITS),
    "a tensor's": (torch.tensor([1, 3]), None, [1, 3], DIGITS),
    "whole floats with names": ([1.0, 3.0, 1], "abcd", [1, 3, 1], (b"a", b"b", b"c", b"d")),
    "truth values": ([True, False, np.True_], None, [1, 0, 1], BOOLEANS),
    "one truth value": ([True], None, [1], BOOLEANS),
    "truth values as text": (["True", "FALSE", "true"], None, [1, 0, 1], BOOLEANS),
    "truth values with names": ([True, "false"], ["no", "yes"], [1, 0], (b"no", b"yes")),
    "a truth value among names": (["True", "Maybe"], None, [1, 0], (b"Maybe", b"True")),
    "names": (["dog", "cat", "dog"], None, [1, 0, 1], (b"cat", b"dog")),
    "names with white space": (["dog ", " cat", "dog"], None, [1, 0, 1], (b"cat", b"dog")),
    "names that are bytes": ([b"dog", "cat"], None, [1, 0], (b"cat", b"dog")),
    "names that begin with a number": (["3d", "10-20", "60+", "1.2.3", "1st"], None, [3, 1, 4, 0, 2], ()),
    "names of what is missing, among names": (["None", "NA", "?"], None, [2, 1, 0], (b"?", b"NA", b"None")),
    "digits": (["3", " 0", "01", "+2", 1], None, [3, 0, 1, 2, 1], DIGITS),
    "whole floats with names as text": (["1.0", "0"], "ab", [1, 0], (b"a", b"b")),
    "numbers with names": ([1, 0, "1"], ["a", "b", "c"], [1, 0, 1], (b"a", b"b", b"c")),
    "an order of names": (["a", "b"], ["b", "z", "a"], [2, 0], (b"b", b"z", b"a")),
    "digits that classes list": (["7", 3, "03", 7.0], ["7", "3"], [0, 1, 1, 0], (b"7", b"3")),
    "digits that classes do not list": (["1", "0"], ["a", "b"], [1, 0], (b"a", b"b")),
    "digits among names that classes list": (["1", 0, "?"], ["?", "0", "1"], [2, 1, 0], (b"?", b"0", b"1")),
    "some of the digits among names": ([1, 0], ["?", "0", "1"], [2, 1], (b"?", b"0", b"1")),
    "fractions that classes list": (["1.5", 2], ["1.5", "2"], [0, 1], (b"1.5", b"2")),
    "nearly numbers that classes list": (["1,5", "5%"], ["5%", "1,5", "[1 2]"], [1, 0], (b"5%", b"1,5", b"[1 2]")),
    "not UTF-8": (["b", "a\udcff"], None, [1, 0], (b"a\xff", b"b")),
}


@pytest.mark.parametrize("case", CASES)
def test_labels_become_class_numbers(case: str) -> None:
    labels, classes, expected, names = CASES[case]
    numbers, found = number(labels, classes)
    assert (numbers, names and found) == (expected, names)


def test_names_of_folders_stay_names() -> None:
    assert number(["10", "9", "1,5", "true"], are_names=True) == ([1, 2, 0, 3], (b"1,5", b"10", b"9", b"true"))


OTHERS: dict[str, tuple[Any, Any, tuple[bytes, ...]]] = {
    "floats": ([0.5, 2, np.float32(3)], [0.5, 2, 3], ()),
    "whole floats": ([2.0, 3.0], [2, 3], ()),
    "floats after integers": ([2, 3, 2, 0.5], [2, 3, 2, 0.5], ()),
    "decimals": ([Decimal("0.5"), Decimal(2)], [0.5, 2], ()),
    "fractions as text": (["3", "3", "0.5", "1e1", "-4", -1, 7], [3, 3, 0.5, 10, -4, -1, 7], ()),
    "whole floats as text": (["3.0", "2"], [3, 2], ()),
    "vectors": ([[1, 2], (0.5, 3), np.array([4, 5]), torch.tensor([6, 7])], [[1, 2], [0.5, 3], [4, 5], [6, 7]], ()),
    "vectors as text": (["[1, 2]", "[0.5, 3]", [4, 5]], [[1, 2], [0.5, 3], [4, 5]], ()),
    "sets": ([{"b"}, [], ("a", b"b")], [[0, 1], [0, 0], [1, 1]], (b"a", b"b")),
    "sets as text": (["[]", '["b", "a"]', "['b']"], [[0, 0], [1, 1], [0, 1]], (b"a", b"b")),
    "many classes": ([[str(n)] for n in range(9, 20)], np.eye(11).tolist(), tuple(b"%d" % n for n in range(9, 20))),
}


@pytest.mark.parametrize("case", OTHERS)
def test_numbers_vectors_and_sets_are_collected(case: str) -> None:
    labels, expected, classes = OTHERS[case]
    rows = LabelRows()
    for row, label in enumerate(labels):
        rows.add({"x": label, "y": row}, RowOrigin(), row)
    found = rows.finish()
    served = found["x"].serve(np.arange(len(labels)))
    assert (served.dtype, served.tolist(), found["x"].classes) == (np.float32, expected, classes)
    assert found["y"].serve(np.arange(2)).tolist() == [0, 1]


def test_classes_can_be_given_per_label() -> None:
    rows = LabelRows({"x": ["b", "a"], "z": ["c"]})
    rows.add({"x": ["a"], "y": 0}, RowOrigin(), 1)
    with pytest.raises(ValueError, match=r"classes has names for \['z'\]"):
        rows.finish()
    rows = LabelRows({"x": ["b", "a"]})
    rows.add({"x": ["a"], "y": 0}, RowOrigin(), 1)
    assert rows.finish()["x"].serve(np.arange(1)).tolist() == [[0, 1]]
    rows = LabelRows(["b", "a"])
    rows.add({"x": ["a"], "y": 0}, RowOrigin(), 1)
    with pytest.raises(ValueError, match="classes must be a dict by the names of the labels"):
        rows.finish()


NEARLY = ["1,5", "5%", "$5", "1 000", "1.000.000", "1'000", "1_000", "nan", "NaN", "-inf", "\u22125", "\uff15", "1,2,3"]
NEARLY += ["1" * 500, "1 2", "3|4", "3;4", "(1, 2)", "{1, 2}", "<NA>", "5 \u20ac", "7,"]


@pytest.mark.parametrize("text", NEARLY)
def test_text_that_is_nearly_a_number_is_refused(text: str) -> None:
    with pytest.raises(LoaderError, match=r"line 2: label .* is nearly a number: fix=.*classes="):
        number(["x", f" {text} "])


@pytest.mark.parametrize("text", ["[1 2]", "[1, 2", "[cat]", "[a.b(), 1]"])
def test_text_that_is_nearly_a_list_is_refused(text: str) -> None:
    with pytest.raises(LoaderError, match=r"line 1: label .* is nearly a list: fix=.*classes="):
        number([text])


MANY = "; 2 of 3 rows have none"
WRONG: dict[str, tuple[list[Any], Any, str]] = {
    "negative": ([0, -1], None, "line 2: label -1 is negative"),
    "negative as text": (["0", "-1", "-1"], None, f"line 2: label -1 is negative, which means no label{MANY}"),
    "values, not marks": ([0, -1, -2], None, "line 2: label -1 is negative, so .*:float"),
    "an identifier": ([0, MAX_CLASSES], None, "line 2: label 1048576 is too large.*classes="),
    "an identifier as text": (["4711000111"], None, "line 1: label 4711000111 is too large"),
    "a fraction with classes": ([1, 0.5], ["a", "b"], "line 2: label 0.5 is not a class.*leave out classes"),
    "a fraction as text with classes": (["1", "0.5"], ["a", "b"], "line 2: label 0.5 is not a class"),
    "none": ([0, None, None], None, f"line 2: no label{MANY}: fix=.*missing_labels='leave_out'"),
    "an empty cell": (["a", " "], None, "line 2: no label"),
    "not a number": ([0, float("nan")], None, "line 2: no label"),
    "an array": ([np.zeros((2, 2))], None, "line 1: a label must be a list of numbers or names, got"),
    "an object": ([object()], None, "line 1: a label must be a class, a number, or a list"),
    "a name among floats": (
        [0.5, 1, "a"],
        None,
        "line 3: label 'a' is a name, but label 0.5 of train.csv line 1 is a fl",
    ),
    "a float among names": (
        ["a", 0.5],
        None,
        "line 2: label 0.5 is a float, but label 'a' of train.csv line 1 is a name",
    ),
    "a name among digits": (
        ["0", "1", "NA"],
        None,
        "line 3: label 'NA' is a name, but label '0' of .* is a number: fix=",
    ),
    "digits among names": (["n/a", "0.5"], None, "line 2: label '0.5' is a float, but label 'n/a'"),
    "infinite": ([0.5, float("inf")], None, "line 2: label inf is not a finite number"),
    "too large for float32": (["0.5", "1e39"], None, r"line 2: label 1e\+39 is not a finite number"),
    "a vector of another length": ([[1, 2], [1]], None, "line 2: a vector of 1 numbers, but the first one has 2"),
    "a vector with a nan": ([[1, float("nan")]], None, r"line 1: label \[1.0, nan\] is not a finite"),
    "a vector after a number": ([0.5, [1]], None, r"line 2: label \[1\] is a vector, but label 0.5"),
    "names after a vector": ([[1], ["a"]], None, r"line 2: label \['a'\] is a set of names, but label \[1\]"),
    "a set of numbers": ([{1, 2}], None, "line 1: a label must be a list of numbers or names"),
    "other names of labels": ([{"a": 1}, {"b": 1}], None, r"line 2: labels \['b'\], but the first row has \['a'\]"),
    "one label after several": ([{"a": 1}, 1], None, r"line 2: labels \[''\], but the first row has \['a'\]"),
    "one of several": ([{"a": 1}, {"a": None}], None, "line 2: a: no label"),
    "a member that is not a class": ([["a"], ["c"]], ["a", "b"], "line 2: label 'c' is not one of classes"),
    "names and numbers": (
        [0, "a", 1],
        None,
        "line 2: label 'a' is a name, but label 0 of train.csv line 1 is a number",
    ),
    "truth values and numbers": ([True, 0], None, "line 2: label 0 is a number, but label True"),
    "a number without name": ([0, 2], ["a", "b"], "line 2: label 2 has no name: classes has 2"),
    "an unknown name": (["a", "c"], ["a", "b"], "line 2: label 'c' is not one of classes"),
    "an unknown number among names": (["1", 2], ["?", "1"], "line 2: label '2' is not one of classes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_labels_are_refused_with_their_row(case: str) -> None:
    labels, classes, text = WRONG[case]
    with pytest.raises(LoaderError, match=rf"E-FORMAT.*train\.csv {text}") as caught:
        number(labels, classes)
    assert "astype" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([2, None, 0, -1, float("nan"), 2], [2, 0, 2]), (["b", "", "a", None], [1, 0]), (["0", "-1", "3"], [0, 3])],
)
def test_rows_without_a_label_are_left_out_on_request(labels: list[Any], expected: list[int]) -> None:
    assert number(labels, missing_labels="leave_out")[0] == expected
    with pytest.raises(LoaderError, match=r"line 2: .*(no label|-1)"):
        number(labels)


def test_a_row_without_one_of_several_labels_is_left_out() -> None:
    rows = LabelRows(missing_labels="leave_out")
    for row in range(5):
        rows.add({"a": None if row == 1 else row, "b": -1.0 if row == 2 else [None, 0.5][row != 4]}, RowOrigin(), row)
    found = rows.finish()
    assert rows.left_out.tolist() == [False, True, False, False, True]
    assert (found["a"].values.tolist(), found["b"].values.tolist()) == ([0, 2, 3], [0.5, -1, 0.5])
    with pytest.raises(LoaderError, match=r"E-NODATA.*none of the 2 rows has a label.*label=None"):
        number([None, -1], missing_labels="leave_out")
    with pytest.raises(ValueError, match="missing_labels must be one of raise, leave_out, got 'skip'"):
        LabelRows(missing_labels="skip")


def test_labels_are_read_as_floats_on_request() -> None:
    rows = LabelRows(floats=["age"])
    labels = [3, "-1", "1e2", np.int8(-7), True, "0.5"]
    for row, label in enumerate(labels):
        rows.add({"age": label, "kind": "a"}, RowOrigin(), row)
    assert rows.finish()["age"].values.tolist() == [3, -1, 100, -7, 1, 0.5]
    for label, words in (("x", "label 'x' is not a number"), ([1], r"label \[1\] is not a number"), (None, "no label")):
        with pytest.raises(LoaderError, match=f"line 2: {words}"):
            number([1, label], floats=[""])
    with pytest.raises(ValueError, match="float labels cannot have classes"):
        LabelRows(["a"], floats=[""]).column()


def test_the_float_suffix_selects_the_labels_read_as_floats() -> None:
    assert split_floats("age:float", ["age"]) == ("age", {""})
    assert split_floats("age:float", ["age", "age:float"]) == ("age:float", set())
    assert split_floats(["age:float", "kind"], ["age"]) == (["age", "kind"], {"age"})
    assert split_floats({"a": "age:float", "k": "kind"}, []) == ({"a": "age", "k": "kind"}, {"a"})
    assert split_floats(None, []) == (None, set())


def test_categories_keep_their_order() -> None:
    def order(*declared: list[str], labels: Any = ("b", "a")) -> Any:
        rows = LabelRows()
        for names in declared:
            rows.column().declare(names)
        for row, label in enumerate(labels):
            rows.add(label, RowOrigin(), row)
        return rows.finish()[""].classes

    assert order(["z", "b", "a"]) == (b"z", b"b", b"a")
    assert order(["z", "b"], ["z", "b", "a"], ["z"]) == (b"z", b"b", b"a")
    assert order(["b ", "z", "", "b"], labels=["z", " b"]) == (b"b", b"z")  # read like labels
    assert order(["10", "9"], labels=["9", "9"])[-2:] == (b"8", b"9")  # digits are numbers
    for declared in (["b", "a"], ["a", "b"]), (["b"],):
        with pytest.warns(UserWarning, match="differ between parts, so the classes are sorted by name"):
            assert order(*declared) == (b"a", b"b")


def test_data_without_labels_is_one_class() -> None:
    numbers, classes, others = split_classes(LabelRows().finish(), 2)
    assert (numbers.tolist(), classes, others) == ([0, 0], (b".",), {})
    with pytest.raises(ValueError, match="classes needs labels"):
        LabelRows(["a"]).finish()


@pytest.mark.parametrize("classes", ["cat", [], [1, 2], {"a": "cat"}])
def test_classes_must_be_a_list_of_names(classes: Any) -> None:
    with pytest.raises(ValueError, match="classes must"):
        LabelRows(classes)


def test_a_repeated_class_name_is_refused_only_for_labels_that_are_names() -> None:
    assert number([0, 1], ["crane", "crane"]) == ([0, 1], (b"crane", b"crane"))
    with pytest.raises(ValueError, match="a name occurs twice"):
        number(["crane"], ["crane", "crane"])
