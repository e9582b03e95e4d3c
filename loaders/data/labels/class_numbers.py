"""Numbers classes: the one rule by which the labels of lists, tables, tars and Arrow files become class numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.labels.row_errors import Fail
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import near_name, shown

# Each class has a name, which every process holds: a larger number is an identifier, not a class number.
MAX_CLASSES = 1 << 20
ONE_CLASS = b"."  # of images without labels, as of a flat folder
Label = str | int


def number_classes(
    labels: Sequence[Label], classes: tuple[bytes, ...] | None, fail: Fail
) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
    """Return the class number of each of some distinct labels, all integers or all strings, and the class names.

    Integers are class numbers. Strings are class names, numbered in sorted order or as `classes` lists them.
    """
    if labels and isinstance(labels[0], int):
        return _check_numbers(labels, classes, fail)
    return _number_names(labels, classes, fail)


def checked_classes(classes: Any) -> tuple[bytes, ...] | None:
    """Return the option `classes`. Raises ValueError for what is no list of names: a set has no order, for example."""
    if classes is None:
        return None
    is_list = hasattr(classes, "__iter__") and not isinstance(classes, (str, bytes, set, frozenset, Mapping))
    names = list(classes) if is_list else []
    if not is_list or not all(isinstance(name, (str, bytes)) for name in names):
        raise ValueError(f"classes must be a list of class names, got {shown(classes)}")
    if not names:
        raise ValueError("classes must have at least one name, got none")
    return tuple(map(os.fsencode, names))


def checked_classes_by_label(classes: Any) -> Any:
    """Return the option `classes`, or a dict of such by the names of labels, read once. Raises ValueError."""
    if not isinstance(classes, Mapping):
        return checked_classes(classes)
    if any(isinstance(names, (str, bytes, int)) for names in classes.values()):  # {"cat": 0}, {0: "cat"}
        raise ValueError(f"classes must be a list of class names, or such by label, got {shown(classes)}")
    return {name: checked_classes(names) for name, names in classes.items()}


def _check_numbers(
    labels: Sequence[Any], classes: tuple[bytes, ...] | None, fail: Fail
) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
    limit = MAX_CLASSES if classes is None else len(classes)
    for at, number in enumerate(labels):
        if number < 0:
            fix = "number the classes from 0; ask for other numbers by label='COLUMN:float', or pass them as floats"
            raise fail(at, f"label {shown(number)} is negative, so it is not a class number", fix)
        if number >= limit and classes is not None:
            raise fail(at, f"label {shown(number)} has no name: classes has {limit:,}", "add its name to classes")
        if number >= limit:
            cause = f"label {shown(number)} is too large for a class number (at most {limit - 1:,})"
            raise fail(at, cause, "list the labels with classes= if they are names, or pass label='COLUMN:float'")
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
