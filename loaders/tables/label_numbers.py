"""Turns the labels of rows into class numbers."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.tables.row_origin import RowOrigin
from penstock.pipelines.checked import shown
from penstock.pipelines.errors import printable

# Each class has a name, which every process holds: a larger number is an identifier, not a class number.
MAX_CLASSES = 1 << 20
ONE_CLASS = b"."  # as of a flat folder
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_FRACTION = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_REGRESSION = "regression targets go to with_labels(source, targets)"


class LabelNumbers:
    """Number the labels of rows, one row after another; the class numbers are known at the end.

    Integers are class numbers, as are False, True and whole floats. Strings are class names, numbered in sorted order
    or as `classes` lists them. Strings of a table without types are class numbers if all of them are integers and
    `classes` does not list them. Without any label all rows are of one class.

    Args:
        classes: class names by class number; the default is b"0", b"1", ... or the sorted names.
        untyped: whether labels come from text, so that "1" may be a number.
    """

    def __init__(self, classes: Sequence[str | bytes] | None = None, *, untyped: bool = False) -> None:
        self._classes, self._untyped = None if classes is None else _checked_classes(classes), untyped
        self._numbers: dict[str | int, int] = {}
        self._firsts: list[tuple[RowOrigin, int]] = []  # where each label occurs first
        self.flat = False

    def number(self, label: Any, origin: RowOrigin, row: int) -> int:
        """Return the number of a label among the labels seen so far. Raises LoaderError E-FORMAT, naming the row."""
        try:
            known = self._numbers.get(label)
        except TypeError:
            known = None  # a list, which _add refuses
        return self._add(label, origin, row) if known is None else known

    def _add(self, label: Any, origin: RowOrigin, row: int) -> int:
        plain = label
        if hasattr(label, "item"):
            with contextlib.suppress(ValueError, RuntimeError):  # an array or a tensor of several
                plain = label.item()
        if plain is None or (isinstance(plain, (str, float)) and (plain == "" or plain != plain)):
            raise origin.error(row, "no label", "give every row a label, or pass a table without a label column")
        if isinstance(plain, float):
            if not plain.is_integer():
                raise origin.error(row, f"label {plain} is not a class: {_REGRESSION}", "pass class numbers or names")
            plain = int(plain)
        if isinstance(plain, bytes):
            plain = os.fsdecode(plain)
        if not isinstance(plain, (str, int)):
            cause = f"a label must be one class number or name, got {shown(plain)}"
            raise origin.error(row, cause, "pass one label per image, or several to with_labels(source, labels)")
        if isinstance(plain, int):
            self._check_range(plain, origin, row)
        if plain not in self._numbers:
            self._numbers[plain] = len(self._numbers)
            self._firsts.append((origin, row))
        return self._numbers[plain]

    def finish(self) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
        """Return the class number of each label in the order in which they were numbered, and the class names.

        Raises LoaderError E-FORMAT for a label that `classes` does not have, and for names next to numbers.
        """
        labels = list(self._numbers)
        if not labels:
            self.flat = True
            if self._classes is not None:
                raise ValueError("classes must come with labels, and there are none: pass label=, or no classes")
            return np.zeros(1, np.int32), (ONE_CLASS,)
        if self._untyped:
            labels = self._typed([str(label) for label in labels])
        kinds = [isinstance(label, int) for label in labels]
        if any(kinds) and not all(kinds):
            at = kinds.index(not kinds[0])
            cause = f"label {shown(labels[at])} next to label {shown(labels[0])}: names and numbers are mixed"
            raise self._error(at, cause, "pass all labels as strings, or all as integers")
        if all(kinds):
            return self._finish_numbers(np.array(labels, np.int32))
        return self._finish_names([str(label) for label in labels])

    def _typed(self, texts: list[str]) -> list[Any]:
        """Return texts as they are, or as the integers that they are."""
        if self._classes is not None and all(os.fsencode(text) in self._classes for text in texts):
            return texts
        if not all(map(_FRACTION.fullmatch, texts)):
            return texts
        for at, text in enumerate(texts):
            if not _WHOLE.fullmatch(text):
                fix = "pass class numbers or names; if these are names, list them with classes="
                raise self._error(at, f"label {text} is not a class: {_REGRESSION}", fix)
            self._check_range(int(text.partition(".")[0]), *self._firsts[at])
        return [int(text.partition(".")[0]) for text in texts]

    def _finish_numbers(self, numbers: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
        if self._classes is None:
            return numbers, tuple(b"%d" % number for number in range(int(numbers.max()) + 1))
        for at in np.flatnonzero(numbers >= len(self._classes)).tolist():
            raise self._error(at, f"label {numbers[at]} has no name: classes has {len(self._classes):,}")
        return numbers, self._classes

    def _finish_names(self, names: list[str]) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...]]:
        classes = self._classes or tuple(map(os.fsencode, sorted(names)))
        number_of = {name: number for number, name in enumerate(classes)}
        if len(number_of) < len(classes):
            raise ValueError("classes must be distinct names where labels are names, and a name occurs twice")
        numbers = [number_of.get(os.fsencode(name), -1) for name in names]
        if -1 in numbers:
            at = numbers.index(-1)
            raise self._error(at, f"label {printable(names[at])} is not one of classes", "add it to classes=")
        return np.array(numbers, np.int32), classes

    def _check_range(self, number: int, origin: RowOrigin, row: int) -> None:
        if number < 0:
            cause = f"label {number} is negative; -1 is reserved for padding"
            raise origin.error(row, cause, "leave these rows out, or number the classes from 0")
        if number >= MAX_CLASSES:
            cause = f"label {number} is too large for a class number (at most {MAX_CLASSES - 1:,})"
            raise origin.error(row, cause, "pass such labels as strings with classes=, or renumber them from 0")

    def _error(self, at: int, cause: str, fix: str | None = None) -> Exception:
        origin, row = self._firsts[at]
        return origin.error(row, cause, fix)


def _checked_classes(classes: Sequence[str | bytes]) -> tuple[bytes, ...]:
    if isinstance(classes, (str, bytes)) or not all(isinstance(name, (str, bytes)) for name in classes):
        raise ValueError(f"classes must be a list of class names, got {shown(classes)}")
    names = tuple(map(os.fsencode, classes))
    if not names:
        raise ValueError("classes must have at least one name, got none")
    return names
