"""Collects labels of any kind, row after row or many rows at once, in a few bytes per row."""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.labels.class_numbers import Label, checked_classes, is_fraction, is_number, number_classes
from penstock.loaders.labels.label_values import ALONE, Labels, LabelValues, pack_sets
from penstock.loaders.labels.row_origin import Fail
from penstock.pipelines.checked import shown

CLASS, NUMBER, VECTOR, SET = "a class", "a number", "a vector", "a set of names"
_LARGEST = float(np.finfo(np.float32).max)
_ONE_KIND = "give all rows labels of one kind"


class LabelColumn:
    """Collect one label per row; the first says of what kind they are, and the class numbers are known at the end.

    Integers and strings are class numbers and names, as number_classes says; floats are numbers, among which integers
    are numbers too; sequences of numbers are vectors, of strings sets of classes. Errors name the row.

    Args:
        classes: class names by class number, or of the elements of vectors and sets.
        untyped: whether labels come from text: "3" may be a class number, "0.5" a number, "[1, 2]" a vector.
        name: of the labels, for errors.
    """

    def __init__(self, classes: Any = None, *, untyped: bool = False, name: str = ALONE) -> None:
        self._classes, self._untyped, self._name = checked_classes(classes), untyped, name
        self._codes: dict[Label, int] = {}  # label, or member of a set -> its number among those seen
        self._firsts: list[tuple[Fail, int]] = []  # where each occurs first
        self._code_of, self._numbers, self._counts = array("I"), array("f"), array("I")
        self._kind, self._first, self._width = "", "", 0

    def __len__(self) -> int:
        if self._kind == SET:
            return len(self._counts)
        return len(self._numbers) // max(1, self._width) if self._kind in (NUMBER, VECTOR) else len(self._code_of)

    def add(self, label: Any, fail: Fail, row: int) -> None:
        """Add the label of a row. Raises the error of `fail`."""
        if self._kind == CLASS and not isinstance(label, float):
            with contextlib.suppress(TypeError):  # a list, which _plain looks at
                code = self._codes.get(label)
                if code is not None:
                    self._code_of.append(code)
                    return
        elif self._kind == NUMBER and (isinstance(label, float) or (self._untyped and is_number(str(label)))):
            number = float(label)
            if abs(number) <= _LARGEST:
                self._numbers.append(number)
                return
        plain = self._plain(label)
        if plain is None or (isinstance(plain, (str, float)) and (plain == "" or plain != plain)):
            fix = "give every row a label, or leave the row out"
            raise self._error(fail, row, "no label" + " (not a number)" * isinstance(plain, float), fix)
        if isinstance(plain, float):
            self._add_number(plain, label, fail, row)
        elif isinstance(plain, (str, int)):
            self._add_class(plain, fail, row)
        elif isinstance(plain, Collection) and not isinstance(plain, Mapping):
            self._add_several(list(plain), isinstance(plain, Set), fail, row)
        else:
            cause = f"a label must be a class, a number, or a list of numbers or names, got {shown(label)}"
            raise self._error(fail, row, cause, _ONE_KIND)

    def _plain(self, label: Any) -> Any:
        """Return a label as a string, an integer, a float or a collection of these."""
        if hasattr(label, "detach"):
            label = label.detach().cpu()
        if hasattr(label, "tolist"):
            label = label.tolist()
        if isinstance(label, bytes):
            return os.fsdecode(label)
        if not isinstance(label, str):
            return float(label) if hasattr(label, "__float__") and not isinstance(label, int) else label
        may_be_number = self._untyped and self._classes is None
        if may_be_number and (is_fraction(label) or (self._kind == NUMBER and is_number(label))):
            return float(label)
        if self._untyped and label[:1] == "[":
            with contextlib.suppress(ValueError, RecursionError):
                return json.loads(label)
        return label

    def _add_class(self, label: Label, fail: Fail, row: int) -> None:
        if self._kind == NUMBER and isinstance(label, int):
            self._add_number(float(label), label, fail, row)
            return
        self._take_kind(CLASS, label, fail, row)
        self._code_of.append(self._code(label, fail, row))

    def _add_number(self, number: float, label: Any, fail: Fail, row: int) -> None:
        if self._classes is not None:
            if not number.is_integer():
                fix = "leave out classes for numbers that are served as they are"
                raise self._error(fail, row, f"label {shown(number)} is not a class", fix)
            self._add_class(int(number), fail, row)
            return
        if self._kind == CLASS:
            self._read_as_numbers(label, fail, row)
        self._take_kind(NUMBER, label, fail, row)
        self._width = 1
        self._extend(np.array([number]), fail, [row])

    def _read_as_numbers(self, label: Any, fail: Fail, row: int) -> None:
        """Make numbers of the class numbers so far, now that a label is none."""
        for known in self._codes:
            if not is_number(str(known)) or (isinstance(known, str) and not self._untyped):
                raise self._mixed(shown(known), label, fail, row)
        values = np.array([float(known) for known in self._codes], np.float32)
        self._numbers.frombytes(values[np.frombuffer(self._code_of, np.uint32)].tobytes())
        self._kind, self._codes, self._code_of = "", {}, array("I")

    def _add_several(self, members: list[Any], is_set: bool, fail: Fail, row: int) -> None:
        names = [os.fsdecode(member) if isinstance(member, bytes) else member for member in members]
        if all(isinstance(name, str) for name in names) and (names or is_set or self._kind != VECTOR):
            self._take_kind(SET, members, fail, row)
            self._counts.append(len(names))
            self._code_of.extend(self._code(name, fail, row) for name in names)
            return
        try:
            numbers = np.array([] if is_set else members, np.float64)
        except (TypeError, ValueError):
            numbers = np.zeros(0)
        if numbers.ndim != 1 or not len(numbers):
            raise self._error(fail, row, f"a label must be a list of numbers or names, got {shown(members)}")
        self._take_kind(VECTOR, members, fail, row)
        self._width = self._width or len(numbers)
        if len(numbers) != self._width:
            cause = f"a vector of {len(numbers)} numbers, the first one has {self._width}"
            raise self._error(fail, row, cause, "give all rows vectors of one length, or names")
        self._extend(numbers[np.newaxis], fail, [row])

    def add_coded(self, labels: Sequence[Label], codes: npt.NDArray[Any], fail: Fail, rows: Sequence[int]) -> None:
        """Add classes of `rows`: `codes` [n] say which of the distinct `labels`."""
        if len(codes):
            self._take_kind(CLASS, labels[int(codes[0])], fail, rows[0])
            self._add_codes(labels, codes, fail, rows)

    def add_sets(
        self, labels: Sequence[Label], codes: npt.NDArray[Any], counts: Any, fail: Fail, rows: Sequence[int]
    ) -> None:
        """Add sets of classes of `rows`: how many members each has, and `codes` of all members, one row's first."""
        if len(rows):
            self._take_kind(SET, labels, fail, rows[0])
            self._counts.frombytes(np.asarray(counts, np.uint32).tobytes())
            self._add_codes(labels, codes, fail, np.repeat(np.asarray(rows), counts))

    def _add_codes(self, labels: Sequence[Label], codes: npt.NDArray[Any], fail: Fail, rows: Any) -> None:
        firsts = np.zeros(len(labels), np.int64)
        firsts[codes[::-1]] = np.asarray(rows)[::-1]
        known = [self._code(label, fail, row) for label, row in zip(labels, firsts.tolist(), strict=True)]
        self._code_of.frombytes(np.array(known, np.uint32)[codes].tobytes())

    def add_numbers(self, values: npt.NDArray[Any], fail: Fail, rows: Sequence[int]) -> None:
        """Add numbers [n] or vectors [n, k] of `rows`."""
        if not len(values):
            return
        self._take_kind(NUMBER if values.ndim == 1 else VECTOR, values[0].tolist(), fail, rows[0])
        width = 1 if values.ndim == 1 else values.shape[1]
        if self._width not in (0, width):
            raise self._error(fail, rows[0], f"a vector of {width} numbers, the first one has {self._width}")
        self._width = width
        self._extend(values, fail, rows)

    def _extend(self, values: npt.NDArray[Any], fail: Fail, rows: Sequence[int]) -> None:
        with np.errstate(over="ignore"):
            floats = values.astype(np.float32)
        wrong = np.flatnonzero(~np.isfinite(floats.reshape(len(floats), -1)).all(1))
        if len(wrong):
            cause = f"label {shown(values[wrong[0]].tolist())} is not a finite number"
            raise self._error(fail, rows[int(wrong[0])], cause, "leave the row out, or give it a number")
        self._numbers.frombytes(floats.tobytes())

    def _code(self, label: Label, fail: Fail, row: int) -> int:
        code = self._codes.setdefault(label, len(self._codes))
        if code == len(self._firsts):
            self._firsts.append((fail, row))
        return code

    def _take_kind(self, kind: str, label: Any, fail: Fail, row: int) -> None:
        if not self._kind:
            self._kind, self._first = kind, shown(label)
        elif self._kind != kind:
            raise self._mixed(self._first, label, fail, row)

    def _mixed(self, known: Any, label: Any, fail: Fail, row: int) -> Exception:
        cause = f"label {shown(label)} next to label {known}: their kinds are mixed"
        return self._error(fail, row, cause, f"{_ONE_KIND}; numbers that are names are listed with classes=")

    def _error(self, fail: Fail, row: int, cause: str, fix: str | None = None) -> Exception:
        return fail(row, f"{self._name}: {cause}" if self._name else cause, fix)

    def _fail(self, at: int, cause: str, fix: str | None = None) -> Exception:
        return self._error(*self._firsts[at], cause, fix)

    def finish(self) -> LabelValues:
        """Return the labels of all rows. Raises the error of a row whose label is none of `classes`."""
        names = self._classes or ()
        if self._kind in (NUMBER, VECTOR):
            values = np.frombuffer(self._numbers, np.float32)
            values = values if self._kind == NUMBER else values.reshape(-1, self._width)
            if names and values.shape[1:] != (len(names),):
                raise ValueError(f"classes must name the {self._width} elements of a label, got {len(names)} names")
            return LabelValues(values, names)
        untyped = self._untyped and self._kind == CLASS
        numbers, classes = number_classes(list(self._codes), self._classes, self._fail, untyped=untyped)
        of_rows = numbers[np.frombuffer(self._code_of, np.uint32)]
        if self._kind != SET:
            return LabelValues(of_rows, classes)
        if not classes:
            raise ValueError("labels must name at least one class, and all of their sets are empty")
        return pack_sets(of_rows, np.repeat(np.arange(len(self)), self._counts), len(self), classes)


class LabelRows:
    """Collect the labels of rows: one each, or dicts of several by name.

    classes: class names, or a dict of them by the labels' names. untyped: as of LabelColumn.
    """

    def __init__(self, classes: Any = None, *, untyped: bool = False) -> None:
        self._untyped, self._columns = untyped, dict[str, LabelColumn]()
        self._classes = classes if isinstance(classes, Mapping) else {ALONE: classes}
        for names in self._classes.values():
            checked_classes(names)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def column(self, name: str = ALONE) -> LabelColumn:
        """Return the labels called `name`."""
        if name not in self._columns:
            self._columns[name] = LabelColumn(self._classes.get(name), untyped=self._untyped, name=name)
        return self._columns[name]

    def add(self, label: Any, fail: Fail, row: int) -> None:
        """Add the label of a row, or its labels by name. Raises the error of `fail`."""
        alone = self._columns.get(ALONE)
        if alone is not None and not isinstance(label, dict):
            alone.add(label, fail, row)
            return
        labels = label if isinstance(label, dict) else {ALONE: label}
        if not self._columns:
            if not all(isinstance(name, str) and (name or labels is not label) for name in labels) or not labels:
                raise fail(row, f"labels must have names that are strings, got {shown(list(labels))}")
            for name in labels:
                self.column(name)
        if labels.keys() != self._columns.keys():
            cause = f"labels {shown(sorted(labels))}, the first row has {shown(sorted(self._columns))}"
            raise fail(row, cause, "give every row the same labels")
        for name, column in self._columns.items():
            column.add(labels[name], fail, row)

    def finish(self) -> Labels:
        """Return all labels by name; nothing where rows have none. Raises ValueError, and as LabelColumn.finish."""
        needless = sorted(name for name in self._classes if name not in self._columns and self._classes[name])
        if needless and not self._columns:
            raise ValueError("classes must come with labels, and there are none: pass label=, or no classes")
        if needless:
            raise ValueError(
                f"classes must be a dict by the names of the labels, {shown(sorted(self._columns))}"
                if needless == [ALONE]
                else f"classes has names for {shown(needless)}, which are no labels"
            )
        return {name: column.finish() for name, column in self._columns.items()}


def name_columns(label: Any) -> dict[str, Any] | None:
    """Return the columns of several named labels by name; None if the option `label` is no list or dict of columns."""
    if not isinstance(label, (list, tuple, Mapping)):
        return None
    named = dict(label) if isinstance(label, Mapping) else {str(column): column for column in label}
    if not named or not all(isinstance(name, str) and name for name in named) or len(named) < len(label):
        raise ValueError(f"label must be a column, or several with names of their own, got {shown(label)}")
    return named
