"""Class numbers and class names from label columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.loaders.data.arrow.arrow_columns import Chosen
from penstock.loaders.data.arrow.arrow_labels import ArrowLabels
from penstock.loaders.data.labels.stored_labels import Labels, split_classes
from penstock.pipelines.errors import LoaderError

LEFT_OUT: dict[str, Any] = {"missing_labels": "leave_out"}


def labels_of(*columns: Any, declared: list[str] | None = None, **options: Any) -> tuple[Labels, list[bool]]:
    chosen = Chosen("image", {"": "label"}, {} if declared is None else {"": tuple(declared)})
    labels = ArrowLabels(chosen, **options)
    for column in columns:
        labels.add([column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([pa.array(column)])], b"/x/a")
    return labels.rows.finish(), labels.rows.left_out.tolist()


def collect(*columns: Any, declared: list[str] | None = None, **options: Any) -> tuple[list[int], list[bytes]]:
    found, left_out = labels_of(*columns, declared=declared, **options)
    numbers, classes, others = split_classes(found, left_out.count(False))
    assert not others
    served = iter(numbers.tolist())
    return [-1 if is_left_out else next(served) for is_left_out in left_out], list(classes)


def test_numbers_of_declared_classes_are_kept() -> None:
    assert collect(pa.array([3, 1], pa.uint8()), declared=["a", "b", "c", "d"]) == ([3, 1], [b"a", b"b", b"c", b"d"])
    assert collect(["3", "1"], declared=["3", "1"]) == ([0, 1], [b"3", b"1"])
    assert collect([1, 0], declared=["1", "0"]) == ([1, 0], [b"1", b"0"])


def test_names_are_sorted_over_all_files() -> None:
    words = pa.chunked_array([["dog", None], ["bee", "dog"]])
    assert collect(words, ["ant", "\u00e9l\u00e9phant"], pa.chunked_array([], pa.string()), **LEFT_OUT) == (
        [2, -1, 1, 2, 0, 3],
        [b"ant", b"bee", b"dog", "\u00e9l\u00e9phant".encode()],
    )
    coded = pa.chunked_array([pa.array(["b", "a", "b"]).dictionary_encode()])
    assert collect(coded, ["a"]) == ([0, 1, 0, 1], [b"b", b"a"])  # dictionaries keep their order
    assert collect(coded, ["a"], classes=["a", "b"]) == ([1, 0, 1, 0], [b"a", b"b"])
    with pytest.warns(UserWarning, match="the dictionaries of the labels differ"):
        assert collect(coded, ["c"]) == ([1, 0, 1, 2], [b"a", b"b", b"c"])
    assert collect(["b"], declared=["z", "b"]) == ([1], [b"z", b"b"])


def test_declared_classes_are_mapped_by_name_to_the_listed_classes() -> None:
    declared = ["bee", "cat", "fox"]
    assert collect([1, 0, -1], declared=declared, classes=["ant", "bee", "cat"], **LEFT_OUT)[0] == [2, 1, -1]
    assert collect([2, 0], declared=declared, classes=declared)[0] == [2, 0]
    with pytest.raises(LoaderError, match="row 1: label 'fox' is not one of classes"):
        collect([1, 2], declared=declared, classes=["ant", "bee", "cat"])
    found = labels_of([[1], [0, 1]], declared=["bee", "cat"], classes=["ant", "bee", "cat"])[0][""]
    assert found.serve(np.arange(2)).tolist() == [[0, 0, 1], [0, 1, 1]]


OTHERS: dict[str, tuple[Any, list[str] | None, list[Any], tuple[bytes, ...]]] = {
    "decimals": (pa.array([1, None, 2], pa.decimal128(5, 2)), None, [1, 2], ()),
    "vectors": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)), None, [[1, 2], [3, 4]], ()),
    "lists": (pa.array([[0.5, 2], None, [3, 4]], pa.large_list(pa.float32())), None, [[0.5, 2], [3, 4]], ()),
    "sets of classes": (pa.array([[2], None, [0, 1]]), ["a", "b", "c"], [[0, 0, 1], [1, 1, 0]], (b"a", b"b", b"c")),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_decimals_vectors_and_sets_are_collected(kind: str) -> None:
    column, declared, expected, classes = OTHERS[kind]
    with pytest.raises(LoaderError, match="row 1: no label"):
        labels_of(column, declared=declared)
    found, left_out = labels_of(column, column.slice(2), declared=declared, **LEFT_OUT)
    assert left_out == [False, True, False, False]
    served = found[""].take(np.array([0, 2, 1]))
    assert (served.classes, served.serve(np.arange(3)).tolist()) == (classes, [expected[0], expected[1], expected[1]])


@pytest.mark.parametrize(
    ("column", "declared", "words"),
    [
        ([[1, 2], [0, 0], [1]], None, "row 2: a vector of 1 numbers, but the first one has 2"),
        ([["a"], ["b", None]], None, "row 1: a list of labels contains a null"),
        ([["a"], ["c"]], ["a", "b"], "row 1: label 'c' is not one of classes"),
        ([[0], [2]], ["a", "b"], "row 1: label 2 has no name"),
    ],
)
def test_invalid_labels_are_refused_with_their_row(column: Any, declared: list[str] | None, words: str) -> None:
    with pytest.raises(LoaderError, match=f"E-FORMAT.*'?a'? {words}"):
        labels_of(column, declared=declared)


def test_names_with_offsets_outside_their_buffer_are_refused() -> None:
    buffers = [None, pa.py_buffer(np.array([0, 9, 2], np.int32)), pa.py_buffer(b"ab")]
    with pytest.raises(pa.ArrowInvalid):
        collect(pa.chunked_array([pa.Array.from_buffers(pa.string(), 2, buffers)]))
