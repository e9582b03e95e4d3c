"""Numbers classes: the one rule by which the labels of lists, tables, tars and Arrow files become class numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.labels.row_origin import Fail
from penstock.pipelines.checked import near_name, shown
from penstock.pipelines.errors import printable

# Each class has a name, which every process holds: a larger number is an identifier, not a class number.
MAX_CLASSES = 1 << 20
ONE_CLASS = b"."  # of images without labels, as of a flat folder
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
Label = str | int


def number_classes(
    labels: Sequence[Label], classes: tuple[bytes, ...] | None, fail: Fail, *, untyped: bool = False
) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
    """Return the class number of each of some distinct labels, and the class names.

    Integers are class numbers. Strings are class names, numbered in sorted order or as `classes` lists them. `untyped`
    strings are class numbers if all of them are integers and `classes` does not list them.
    """
    if untyped:
        labels = _read_numbers([str(label) for label in labels], classes, fail)
    kinds = [isinstance(label, int) for label in labels]
    if any(kinds) and not all(kinds):
        at = kinds.index(not kinds[0])
        cause = f"label {shown(labels[at])} next to label {shown(labels[0])}: names and numbers are mixed"
        raise fail(at, cause, "pass all labels as strings, or all as integers")
    return _check_numbers(labels, classes, fail) if all(kinds) else _number_names(labels, classes, fail)


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    return _NUMBER.fullmatch(text) is not None


def is_fraction(text: str) -> bool:
    """Return whether a text is a number that is not written as an integer."""
    return is_number(text) and not text.lstrip("+-").isdigit()


def checked_classes(classes: Any) -> tuple[bytes, ...] | None:
    """Return the option `classes`. Raises ValueError for what is no list of names."""
    if classes is None:
        return None
    is_list = hasattr(classes, "__iter__") and not isinstance(classes, (str, bytes))
    if not is_list or not all(isinstance(name, (str, bytes)) for name in classes):
        raise ValueError(f"classes must be a list of class names, got {shown(classes)}")
    names = tuple(map(os.fsencode, classes))
    if not names:
        raise ValueError("classes must have at least one name, got none")
    return names


def _read_numbers(texts: list[str], classes: tuple[bytes, ...] | None, fail: Fail) -> Sequence[Label]:
    """Return texts as they are, or as the integers that they are."""
    if classes is not None and all(os.fsencode(text) in classes for text in texts):
        return texts
    if not all(map(is_number, texts)):
        return texts
    for at, text in enumerate(texts):
        if not _WHOLE.fullmatch(text):
            fix = "list the names with classes=, or leave out classes for numbers that are served as they are"
            raise fail(at, f"label {text} is not a class", fix)
    return [int(text.partition(".")[0]) for text in texts]


def _check_numbers(
    labels: Sequence[Any], classes: tuple[bytes, ...] | None, fail: Fail
) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
    limit = MAX_CLASSES if classes is None else len(classes)
    for at, number in enumerate(labels):
        if number < 0:
            fix = "leave these rows out, or number the classes from 0; numbers that are no classes must be floats"
            raise fail(at, f"label {number} is negative; -1 is reserved for padding", fix)
        if number >= limit and classes is not None:
            raise fail(at, f"label {number} has no name: classes has {limit:,}", "add its name to classes")
        if number >= limit:
            cause = f"label {number} is too large for a class number (at most {limit - 1:,})"
            raise fail(at, cause, "pass such labels as strings with classes=, renumber them, or pass floats")
    numbers = np.array(labels, np.int32)
    return numbers, classes or tuple(b"%d" % number for number in range(int(numbers.max(initial=-1)) + 1))


def _number_names(
    names: Sequence[Any], classes: tuple[bytes, ...] | None, fail: Fail
) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
    known = classes or tuple(map(os.fsencode, sorted(names)))
    number_of = {name: number for number, name in enumerate(known)}
    if len(number_of) < len(known):
        raise ValueError("classes must be distinct names where labels are names, and a name occurs twice")
    numbers = [number_of.get(os.fsencode(name), -1) for name in names]
    if -1 in numbers:
        at = numbers.index(-1)
        label, texts = os.fsdecode(names[at]), list(map(os.fsdecode, known))
        cause = f"label {printable(names[at])} is not one of classes"
        raise fail(at, cause, f"correct it, or add it to classes={near_name(label, texts)}")
    return np.array(numbers, np.int32), known
