"""Numbers classes: converts labels and the classes of boxes to class numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.labels.label_text import WHOLE
from penstock.loaders.data.labels.row_errors import Fail
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import near_name, shown

# Each class has a name, which every process stores: a larger number is an identifier, not a class number.
MAX_CLASSES = 1 << 20
ClassLabel = str | int
Classes = tuple[bytes, ...] | dict[str, tuple[bytes, ...] | None] | None  # class names, or class names for each label


def number_labels(
    labels: Sequence[ClassLabel], classes: tuple[bytes, ...] | None, fail: Fail
) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
    """Return the class numbers of distinct labels, all integers or all strings, and the class names.

    Integers are class numbers. Strings are class names, numbered in sorted order or as `classes` lists them.
    """
    numbers = [label for label in labels if isinstance(label, int)]
    if numbers:
        return _check_numbers(numbers, classes, fail)
    return _number_names([label for label in labels if isinstance(label, str)], classes, fail)


def sort_numbers(labels: Sequence[ClassLabel]) -> tuple[bytes, ...] | None:
    """Return names sorted by value if all are numbers; otherwise None."""
    names = [name for name in labels if isinstance(name, str) and name.isdecimal()]
    if not names or len(names) < len(labels):
        return None
    return tuple(map(os.fsencode, sorted(names, key=lambda name: (int(name), name))))


def checked_classes(classes: object) -> tuple[bytes, ...] | None:
    """Return the option `classes`. Raises ValueError unless it is a list of names; a set, for example, has no order."""
    if classes is None:
        return None
    others = (str, bytes, set, frozenset, Mapping)
    names = list(classes) if isinstance(classes, Iterable) and not isinstance(classes, others) else None
    if names is None or not all(isinstance(name, (str, bytes)) for name in names):
        raise ValueError(f"classes must be a list of class names, got {shown(classes)}")
    if not names:
        raise ValueError("classes must have at least one name, got none")
    return tuple(map(os.fsencode, names))


def checked_classes_by_label(classes: object) -> Classes:
    """Return the option `classes`: names, or a dict of names by label, read only once. Raises ValueError."""
    if not isinstance(classes, Mapping):
        return checked_classes(classes)
    if any(isinstance(names, (str, bytes, int)) for names in classes.values()):  # {"cat": 0}, {0: "cat"}
        raise ValueError(f"classes must be a list of class names, or a dict of lists by label, got {shown(classes)}")
    return {name: checked_classes(names) for name, names in classes.items()}


def checked_names(names: object) -> tuple[bytes, ...] | None:
    """Return class names by number, from a list or a dict of number -> name; None for None. Raises ValueError."""
    if names is None:
        return None
    listed = names.tolist() if hasattr(names, "tolist") else names  # an array, or a column of a data frame
    if isinstance(names, Mapping):
        if set(names) != set(range(len(names))):
            raise ValueError(f"names must have the numbers from 0 to {len(names) - 1}, got {shown(list(names))}")
        listed = [names[number] for number in range(len(names))]
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, (str, bytes)) for each in listed):
        raise ValueError(f"names must be a list of class names or a dict of number -> name, got {shown(names)}")
    return tuple(map(os.fsencode, listed))


def number_boxes(
    of_each: Sequence[Sequence[Any]], names: Sequence[str] | Mapping[int, str] | None
) -> tuple[npt.NDArray[np.int64], tuple[bytes, ...]]:
    """Return the class numbers of the boxes of all samples, and the class names: `names`, or the sorted classes.

    Text of digits is a number, unless `names` contains numbers. Raises ValueError for names mixed with numbers, and for
    a box without a class.
    """
    known = checked_names(names)
    sample_of, labels = [at for at, own in enumerate(of_each) for _ in own], [label for own in of_each for label in own]

    def has_box(at: int, rest: str) -> str:
        return f"sample {sample_of[at]} has a box {rest}"

    missing = next((at for at, label in enumerate(labels) if label is None or label != label), None)  # NaN
    if missing is not None:
        raise ValueError(has_box(missing, "without a class: every box needs one"))
    have_numbers = any(WHOLE.fullmatch(os.fsdecode(name)) for name in known or ())
    are_names = [
        isinstance(label, (str, bytes)) and (have_numbers or not WHOLE.fullmatch(os.fsdecode(label)))
        for label in labels
    ]
    if not any(are_names):
        return _check_box_numbers(labels, None if known is None else len(known), has_box), known or ()
    if not all(are_names):
        named, numbered = are_names.index(True), are_names.index(False)
        raise ValueError(
            f"{has_box(named, f'of the class {shown(labels[named])}')}, but sample {sample_of[numbered]} one of "
            f"{shown(labels[numbered])}: use class names for all boxes, or class numbers for all"
        )
    labels = list(map(os.fsencode, labels))
    known = tuple(sorted(set(labels))) if known is None else known
    numbers = _look_up(labels, known, "names must be different if boxes have names, got {} twice")
    if -1 in numbers:
        at = numbers.index(-1)
        raise ValueError(has_box(at, f"of the unknown class {shown(os.fsdecode(labels[at]))}: add it to names"))
    return np.array(numbers, np.int64), known


def _check_box_numbers(
    labels: Sequence[object], count: int | None, has_box: Callable[[int, str], str]
) -> npt.NDArray[np.int64]:
    numbers = [int(label) if isinstance(label, (str, bytes)) else label for label in labels]
    for at, label in enumerate(numbers):
        if not isinstance(label, (int, np.integer)) or not 0 <= label < (np.inf if count is None else count):
            wanted = "at least 0" if count is None else f"from 0 to {count - 1}"
            raise ValueError(has_box(at, f"of class {shown(label)}: class numbers must be {wanted}"))
    return np.array(numbers, np.int64)


def _look_up(names: Sequence[bytes], known: tuple[bytes, ...], rule: str) -> list[int]:
    """Return the numbers of names, -1 for one that is not `known`. Raises ValueError if two `known` names are equal."""
    number_of = {name: number for number, name in enumerate(known)}
    if len(number_of) < len(known):
        twice = next(name for number, name in enumerate(known) if number_of[name] != number)
        raise ValueError(rule.format(shown(os.fsdecode(twice))))
    return [number_of.get(name, -1) for name in names]


def _check_numbers(
    labels: Sequence[int], classes: tuple[bytes, ...] | None, fail: Fail
) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
    limit = MAX_CLASSES if classes is None else len(classes)
    for at, number in enumerate(labels):
        if number < 0:
            fix = "number the classes from 0; for other numbers use label='COLUMN:float', or pass them as floats"
            raise fail(at, f"label {shown(number)} is negative, so it is not a class number", fix)
        if number >= limit and classes is not None:
            raise fail(at, f"label {shown(number)} has no name: classes has {limit:,} names", "add its name to classes")
        if number >= limit:
            cause = f"label {shown(number)} is too large for a class number (at most {limit - 1:,})"
            raise fail(at, cause, "list the labels with classes= if they are names, or pass label='COLUMN:float'")
    numbers = np.array(labels, np.int32)
    return numbers, classes or tuple(b"%d" % number for number in range(int(numbers.max(initial=-1)) + 1))


def _number_names(
    names: Sequence[str], classes: tuple[bytes, ...] | None, fail: Fail
) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
    known = classes or tuple(map(os.fsencode, sorted(names)))
    rule = "classes must be distinct if labels are names, but a name occurs twice: {}"
    numbers = _look_up(list(map(os.fsencode, names)), known, rule)
    if -1 in numbers:
        at = numbers.index(-1)
        label, texts = os.fsdecode(names[at]), list(map(os.fsdecode, known))
        cause = f"label {printable(names[at])} is not one of classes"
        raise fail(at, cause, f"correct it, or add it to classes={near_name(label, texts)}")
    return np.array(numbers, np.int32), known
