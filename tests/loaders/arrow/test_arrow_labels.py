"""Class numbers and names of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.loaders.arrow.arrow_labels import LabelCollector


def collect(*columns: Any, declared: list[str] | None = None) -> tuple[list[int], list[bytes]]:
    labels = LabelCollector(declared)
    for column in columns:
        labels.add(column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([pa.array(column)]))
    numbers, classes = labels.finish()
    return numbers.tolist(), classes


def test_numbers_are_kept() -> None:
    assert collect([2, 0], [None, -1, 2, -7]) == ([2, 0, -1, -1, 2, -1], [b"0", b"1", b"2"])
    assert collect(pa.array([3, 1], pa.uint8()), declared=["a", "b", "c", "d"]) == ([3, 1], [b"a", b"b", b"c", b"d"])
    assert collect([True, False]) == ([1, 0], [b"0", b"1"])


def test_names_are_sorted_over_all_files() -> None:
    words = pa.chunked_array([["dog", None], ["bee", "dog"]])
    assert collect(words, ["ant", "\u00e9l\u00e9phant"], pa.chunked_array([], pa.string())) == (
        [2, -1, 1, 2, 0, 3],
        [b"ant", b"bee", b"dog", "\u00e9l\u00e9phant".encode()],
    )
    coded = pa.chunked_array([pa.array(["b", "a", "b"]).dictionary_encode()])
    assert collect(coded, ["a"]) == ([1, 0, 1, 0], [b"a", b"b"])
    assert collect(["b"], declared=["z", "b"]) == ([1], [b"z", b"b"])


def test_unlabelled_images_are_one_class() -> None:
    labels = LabelCollector()
    labels.add_unlabelled(2)
    numbers, classes = labels.finish()
    assert (numbers.tolist(), classes) == ([0, 0], [b"."])


def test_names_that_point_elsewhere_are_refused() -> None:
    buffers = [None, pa.py_buffer(np.array([0, 9, 2], np.int32)), pa.py_buffer(b"ab")]
    with pytest.raises(pa.ArrowInvalid):
        collect(pa.chunked_array([pa.Array.from_buffers(pa.string(), 2, buffers)]))


def test_numbers_that_are_no_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="below 10,000,000, got 99,000,000"):
        collect([99_000_000])
    with pytest.raises(ValueError, match="below 2, got 2"):
        collect([2], declared=["a", "b"])
    with pytest.raises(ValueError, match="declared classes, got b'c'"):
        collect(["c"], declared=["a", "b"])
    with pytest.raises(ValueError, match="below 1, got 5"):
        collect([5], ["a"])
