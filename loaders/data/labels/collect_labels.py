"""Collects labels of any kind, row by row or many rows at once, in a few bytes per row."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.labels.class_names import cure_of_missing, may_be_missing
from penstock.loaders.data.labels.class_numbers import ClassLabel, checked_classes, number_labels, sort_numbers
from penstock.loaders.data.labels.label_text import BOOLEANS, is_number, plain_label, read_text
from penstock.loaders.data.labels.row_errors import Fail, where_is
from penstock.loaders.data.labels.stored_labels import ALONE
from penstock.loaders.data.samples.columns import StoredValues
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user

NUMBER, NAME, FLOAT, VECTOR, SET = "a number", "a name", "a float", "a vector", "a set of names"
_LARGEST = float(np.finfo(np.float32).max)
_ONE_KIND = "use one kind of label for all rows"
_LIST_NAMES = "correct it, or list all classes with classes= if they are names"
_NO_LABEL, _FROM_0 = "no label", "number the classes from 0"
Indices = npt.NDArray[np.int64]
_BOOLEAN_CLASSES = (b"False", b"True")


class LabelCollector:
    """Collects one label per row; the kind depends on all rows, and class numbers are known at the end.

    Integers are class numbers and strings are class names, as in number_labels; floats are numbers, and integers among
    them too; sequences of numbers are vectors, sequences of strings are sets of classes. A string that is a number or a
    list is parsed as one (read_text). Errors name the row.

    Args:
        classes: class names by class number, or names of the elements of vectors and sets. If some of the names are
            numbers, labels that are numbers are also names.
        are_names: whether strings are always names, like those of folders.
        are_floats: whether labels are floats; integers and strings are then converted.
        name: name of the labels, for errors.

    Attributes:
        keeps_numbers: whether integers are class numbers even if class names are numbers.
    """

    def __init__(
        self, classes: object = None, *, are_names: bool = False, are_floats: bool = False, name: str = ALONE
    ) -> None:
        self._classes, self._are_names, self._are_floats, self._name = checked_classes(classes), are_names, False, name
        self._listed = frozenset(self._classes or ())
        self._lists_numbers = any(is_number(os.fsdecode(known)) for known in self._listed)
        self._declared: tuple[bytes, ...] | None = None
        self._disagree = False  # whether the declarations contradict each other
        self.keeps_numbers = False
        if are_floats:
            self.expect_floats()
        self._codes: dict[ClassLabel, int] = {}  # label, or member of a set -> its number in order of occurrence
        self._code_of_raw: dict[object, int] = {}  # string or integer as in the rows -> that number
        self._firsts: list[tuple[Fail, int]] = []  # first occurrence of each
        self._code_of, self._numbers, self._counts = array("I"), array("f"), array("I")
        self._kind, self._first, self._width = "", "", 0
        self._looked_up: set[int] = set()  # integers that may be among the names
        self._num_rows, self._missing = 0, array("Q")  # the rows without a label
        self._first_missing: tuple[Fail, int, str] | None = None

    def __len__(self) -> int:
        return self._num_rows

    def expect_floats(self) -> None:
        """Convert labels to floats from now on."""
        if self._classes is not None:
            raise ValueError("float labels cannot have classes: leave out ':float' or classes")
        self._are_floats = True

    def declare(self, names: Sequence[object]) -> None:
        """Set the data's own order of class names, as in categories and dictionaries.

        Ignored for numbers, or if `classes` are given. It does not change how a label is parsed.
        """
        texts = [name.strip() for name in names if isinstance(name, str)]
        if self._are_floats or self._classes or len(texts) < len(names) or all(map(is_number, texts)):
            return
        known, new = self._declared, tuple(dict.fromkeys(os.fsencode(text) for text in texts if text))
        self._declared = new if known is None or len(new) > len(known) else known
        self._disagree |= known is not None and known[: len(new)] != new[: len(known)]

    def add(self, label: Any, fail: Fail, row: int) -> None:
        """Add the label of a row. Raises the error of `fail`."""
        self._num_rows += 1
        kind = type(label)
        if kind is str or kind is int:
            code = self._code_of_raw.get(label)
            if code is not None:
                self._code_of.append(code)
                return
        if self._kind == FLOAT and (kind is float or (kind is str and is_number(label))):
            number = float(label)
            if abs(number) <= _LARGEST:
                self._numbers.append(number)
                return
        self._add(label, fail, row, self._num_rows - 1)

    def _add(self, label: object, fail: Fail, row: int, place: int) -> None:
        plain = self._read(label, fail, row)
        if plain is None:
            why = " (not a number)" if isinstance(label, float) else ""
            if isinstance(label, str) and label.strip():
                why = f" ({shown(label)} is not {'a number' if self._are_floats else 'in classes'})"
            self._miss([place], fail, row, _NO_LABEL + why)
        elif isinstance(plain, float):
            self._add_float(plain, label, fail, row)
        elif isinstance(plain, (str, int)):
            self._add_class(plain, label, fail, row)
        elif isinstance(plain, Collection) and not isinstance(plain, (Mapping, bytes)):
            self._add_several(list(plain), isinstance(plain, Set), fail, row)
        else:
            cause = f"a label must be a class, a number, or a list of numbers or names, got {shown(label)}"
            raise self._error(fail, row, cause, _ONE_KIND)

    def _miss(self, places: Sequence[int], fail: Fail, row: int, cause: str) -> None:
        self._missing.extend(places)
        self._first_missing = self._first_missing or (fail, row, cause)

    def _read(self, label: object, fail: Fail, row: int) -> object:
        """Return a label as None, a name (str), an integer, a float or a collection of these."""
        plain = plain_label(label)
        if self._are_names and isinstance(plain, str):
            return plain or None
        text = plain.strip() if isinstance(plain, str) else ""
        if self._are_floats and isinstance(plain, (str, int)):
            plain = None if may_be_missing(text) else BOOLEANS.get(text, plain)
        elif self._listed and isinstance(plain, str if self.keeps_numbers else (str, int, float)):
            name = text if isinstance(plain, str) else repr(plain)
            self._looked_up |= {plain} if isinstance(plain, int) else set()
            if isinstance(plain, str) and os.fsencode(plain) in self._listed:
                return plain
            if os.fsencode(name) in self._listed:
                return name
            if (is_number(name) and float(name) == -1) or may_be_missing(text):
                return None
            whole = name.split(".")[0].lstrip("+").lstrip("0") or "0"
            if self._lists_numbers and is_number(name):
                is_same = float(name) == float(whole if is_number(whole) else "nan")
                return whole if is_same and os.fsencode(whole) in self._listed else name
        if isinstance(plain, str):
            try:
                plain = read_text(plain)
            except ValueError as error:
                fix = _LIST_NAMES + cure_of_missing([text])
                raise self._error(fail, row, f"label {shown(text)} is {error}", fix) from None
        if isinstance(plain, int) and (self._are_floats or abs(plain) > _LARGEST):
            return float(plain) if abs(plain) <= _LARGEST else float("inf")
        if plain is not None and not isinstance(plain, float):
            self._refuse_for_float(label, fail, row)
        return plain

    def _refuse_for_float(self, label: object, fail: Fail, row: int) -> None:
        """Raise the error for a label that is not a number if floats are requested."""
        if self._are_floats:
            raise self._error(fail, row, f"label {shown(label)} is not a number", "correct it, or leave out ':float'")

    def _add_class(self, label: ClassLabel, raw: object, fail: Fail, row: int) -> None:
        if self._kind == FLOAT and isinstance(label, int):
            self._add_float(float(label), label, fail, row)
            return
        self._take_kind(NUMBER if isinstance(label, int) else NAME, raw, fail, row)
        code = self._code(label, fail, row)
        self._code_of.append(code)
        if type(raw) in (str, int):
            self._code_of_raw[raw] = code

    def _add_float(self, number: float, label: object, fail: Fail, row: int) -> None:
        if self._classes is not None:
            if not number.is_integer():
                fix = "leave out classes to serve the numbers unchanged"
                raise self._error(fail, row, f"label {shown(number)} is not a class", fix)
            self._add_class(int(number), label, fail, row)
            return
        if self._kind == NUMBER:  # convert the class numbers so far to floats
            values = np.array([float(known) for known in self._codes], np.float32)
            self._numbers.frombytes(values[np.frombuffer(self._code_of, np.uint32)].tobytes())
            self._kind, self._codes, self._code_of, self._code_of_raw = FLOAT, {}, array("I"), {}
        self._add_values(np.array([number]), label, fail, [row])

    def _add_several(self, members: list[object], is_set: bool, fail: Fail, row: int) -> None:
        names = [os.fsdecode(member) for member in members if isinstance(member, (str, bytes))]
        if len(names) == len(members) and (names or is_set or self._kind != VECTOR):
            self._take_kind(SET, members, fail, row)
            self._counts.append(len(names))
            self._code_of.extend(self._code_member(name, fail, row) for name in names)
            return
        try:
            numbers = np.array([] if is_set else members, np.float64)
        except (TypeError, ValueError):
            numbers = np.zeros(0)
        if numbers.ndim != 1 or not len(numbers):
            raise self._error(fail, row, f"a label must be a list of numbers or names, got {shown(members)}")
        self._add_values(numbers[np.newaxis], members, fail, [row])

    def begin(self, there: npt.NDArray[np.bool_], fail: Fail, rows: Indices) -> None:
        """Begin to add labels of many `rows`; only those marked in `there` have one, and add_coded etc. add them."""
        gaps, first = np.flatnonzero(~there), self._num_rows
        if len(gaps):
            self._miss((gaps + first).tolist(), fail, int(rows[gaps[0]]), _NO_LABEL)
        self._num_rows += len(there)
        self._of_rows, self._rows, self._places = fail, rows[there], np.flatnonzero(there) + first

    def add_coded(self, labels: Sequence[object], codes: npt.NDArray[np.integer]) -> None:
        """Add labels: `codes` [n] are indices into the distinct `labels`."""
        fail, firsts = self._of_rows, _find_firsts(codes, len(labels))
        seen = np.argsort(firsts, kind="stable")
        found: dict[int, Any] = {}
        for number in seen[firsts[seen] < len(codes)].tolist():
            found[number] = self._read(labels[number], fail, int(self._rows[firsts[number]]))
        kinds = {type(label) for label in found.values()}
        if self._classes is None and kinds <= {int, float} and self._kind in ("" if float in kinds else FLOAT, FLOAT):
            values = np.array([found.get(number, 0) for number in range(len(labels))], np.float64)
            self.add_numbers(values[codes])
        elif len(kinds) != 1 or not kinds <= {int, str} or self._kind == FLOAT:
            self._add_each(labels[code] for code in codes.tolist())
        else:
            known = np.zeros(len(labels), np.uint32)
            for number, label in found.items():
                row = int(self._rows[firsts[number]])
                self._take_kind(NUMBER if isinstance(label, int) else NAME, labels[number], fail, row)
                known[number] = self._code(label, fail, row)
            self._code_of.frombytes(known[codes].tobytes())

    def _add_each(self, labels: Iterable[object]) -> None:
        for label, row, place in zip(labels, self._rows.tolist(), self._places.tolist(), strict=True):
            code = self._code_of_raw.get(label) if type(label) in (str, int) else None
            if code is None:
                self._add(label, self._of_rows, row, place)
            else:
                self._code_of.append(code)

    def add_sets(
        self, labels: Sequence[ClassLabel], codes: npt.NDArray[np.integer], counts: npt.NDArray[np.integer]
    ) -> None:
        """Add sets of classes: `counts` are their sizes, `codes` are indices of all members into distinct `labels`."""
        if not len(counts):
            return
        self._refuse_for_float(labels, self._of_rows, int(self._rows[0]))
        self._take_kind(SET, labels, self._of_rows, int(self._rows[0]))
        self._counts.frombytes(counts.astype(np.uint32).tobytes())
        of_members, firsts = np.repeat(self._rows, counts), _find_firsts(codes, len(labels))
        known = [
            self._code_member(label, self._of_rows, int(of_members[first])) if first < len(codes) else 0
            for label, first in zip(labels, firsts.tolist(), strict=True)
        ]
        self._code_of.frombytes(np.array(known, np.uint32)[codes].tobytes())

    def add_numbers(self, values: npt.NDArray[np.number]) -> None:
        """Add numbers [n] or vectors [n, k]."""
        if not len(values):
            return
        if values.ndim == 1 and (self._kind == NUMBER or self._classes is not None):
            self._add_each(values.tolist())
            return
        if values.ndim > 1:
            self._refuse_for_float(values[0].tolist(), self._of_rows, int(self._rows[0]))
        self._add_values(values, values[0].tolist(), self._of_rows, self._rows)

    def _add_values(
        self, values: npt.NDArray[np.number], first: object, fail: Fail, rows: Sequence[int] | Indices
    ) -> None:
        self._take_kind(FLOAT if values.ndim == 1 else VECTOR, first, fail, int(rows[0]))
        width = math.prod(values.shape[1:])
        self._width = self._width or width
        if width != self._width:
            cause = f"a vector of {width} numbers, but the first one has {self._width}"
            raise self._error(fail, int(rows[0]), cause, "use vectors of one length in all rows, or names")
        with np.errstate(over="ignore"):
            floats = values.astype(np.float32)
        wrong = np.flatnonzero(~np.isfinite(floats.reshape(len(floats), -1)).all(1))
        if len(wrong):
            cause = f"label {shown(values[wrong[0]].tolist())} is not a finite number"
            raise self._error(fail, int(rows[int(wrong[0])]), cause, "leave out the row, or correct its label")
        self._numbers.frombytes(floats.tobytes())

    def _code(self, label: ClassLabel, fail: Fail, row: int) -> int:
        code = self._codes.setdefault(label, len(self._codes))
        if code == len(self._firsts):
            self._firsts.append((fail, row))
        return code

    def _code_member(self, name: ClassLabel, fail: Fail, row: int) -> int:
        """Return the number of a member of a set; white space around its name is ignored, unless it is listed so."""
        if isinstance(name, str) and os.fsencode(name) not in self._listed:
            name = name.strip()
        if name == "":
            raise self._error(fail, row, "a list of labels contains an empty name", "leave it out: no classes are []")
        return self._code(name, fail, row)

    def _take_kind(self, kind: str, label: object, fail: Fail, row: int) -> None:
        if not self._kind:
            self._kind, self._first = kind, f"label {shown(label)} of {where_is(fail, row)}"
        elif self._kind != kind:
            cause = f"label {shown(label)} is {kind}, but {self._first} is {self._kind}"
            fix = f"{_ONE_KIND}, or list all classes with classes= if they are names"
            raise self._error(fail, row, cause, fix + cure_of_missing([label, *self._codes]))

    def _error(self, fail: Fail, row: int, cause: str, fix: str | None = None) -> Exception:
        return fail(row, f"{self._name}: {cause}" if self._name else cause, fix)

    def _fail(self, at: int, cause: str, fix: str | None = None) -> Exception:
        return self._error(*self._firsts[at], cause, fix)

    def find_missing(self) -> npt.NDArray[np.bool_]:
        """Return the rows without a label (bool [rows]): null, NaN, an empty text, or class number -1."""
        missing = np.zeros(self._num_rows, bool)
        missing[np.frombuffer(self._missing, np.uint64).astype(np.int64)] = True
        if self._kind == NUMBER and min(self._codes) == -1:
            present = np.flatnonzero(~missing)
            missing[present[np.frombuffer(self._code_of, np.uint32) == self._codes[-1]]] = True
        return missing

    def missing_error(self, fix: str) -> Exception:
        """Return the error for the first row without a label, with the number of such rows."""
        count = int(self.find_missing().sum())
        said = "" if count == 1 else f"; {count:,} of {self._num_rows:,} rows have none"
        if self._first_missing is not None:
            fail, row, cause = self._first_missing
            return self._error(fail, row, f"{cause}{said}", fix)
        cause = f"label -1 is negative, which means no label{said}"
        return self._fail(self._codes[-1], cause, f"{_FROM_0}; {fix}")

    def finish(self, kept: npt.NDArray[np.bool_]) -> StoredValues:
        """Return the labels of the rows `kept` (bool [rows]), which all have one.

        Raises the error of a row with a label that is not in `classes`.
        """
        names = self._classes or ()
        kept = np.delete(kept, np.frombuffer(self._missing, np.uint64).astype(np.int64))
        if self._kind in (FLOAT, VECTOR):
            values = np.frombuffer(self._numbers, np.float32)
            values = values if self._kind == FLOAT else values.reshape(-1, self._width)
            if names and values.shape[1:] != (len(names),):
                raise ValueError(f"classes must name all {self._width} elements of a label, got {len(names)} names")
            return StoredValues(values[kept], names)
        labels = list(self._codes)
        if self._kind == SET:
            numbers, classes = number_labels(labels, self._classes or sort_numbers(labels), self._fail)
            if not classes:
                raise ValueError("labels must name at least one class, but all their sets are empty")
            sets, rows = np.zeros((len(kept), -(-len(classes) // 8)), np.uint8), np.arange(len(kept))
            members = numbers[np.frombuffer(self._code_of, np.uint32)]
            places = np.repeat(rows, self._counts), members >> 3
            np.bitwise_or.at(sets, places, (128 >> (members & 7)).astype(np.uint8))
            return StoredValues(sets[kept], classes)
        known = self._classes
        if self._kind == NAME and self._declared is not None:
            known = self._declared_order(labels)
        if self._kind == NUMBER and min(labels) == -1:
            labels[self._codes[-1]] = max(0, *labels)  # no kept row has it
        elif (
            not self._are_names
            and all(label in BOOLEANS for label in labels)
            and not (known and all(os.fsencode(str(label)) in known for label in labels))
        ):  # only truth values, which are not listed as class names
            labels, known = [BOOLEANS[str(label)] for label in labels], known or _BOOLEAN_CLASSES
        if self._kind == NAME and self._looked_up and max(self._looked_up) < len(names):
            self._warn_of_two_meanings(list(map(os.fsdecode, names)))
        numbers, classes = number_labels(labels, known, self._fail)
        return StoredValues(numbers[np.frombuffer(self._code_of, np.uint32)][kept], classes)

    def _warn_of_two_meanings(self, names: Sequence[str]) -> None:
        """Warn of integers that were found among the names, but could also be different class numbers."""
        found = [number for number in sorted(self._looked_up) if number >= 0 and names[number] != str(number)]
        if found and all(map(is_number, names)) and str(found[0]) in names:
            warn_user(
                f"label {found[0]} is read as the class named '{found[0]}', which classes= lists as class "
                f"{names.index(str(found[0]))}: leave out classes= if the labels are class numbers"
            )

    def _declared_order(self, labels: Collection[ClassLabel]) -> tuple[bytes, ...] | None:
        """Return the names declared by the data; None and a warning if they contradict each other."""
        assert self._declared is not None
        if not self._disagree and {os.fsencode(str(label)) for label in labels} <= set(self._declared):
            return self._declared
        warn_user(
            f"{f'{self._name}: ' * bool(self._name)}the dictionaries of the labels differ between parts, so the "
            "classes are sorted by name: pass classes= for another order"
        )
        return None


def _find_firsts(codes: npt.NDArray[np.integer], count: int) -> npt.NDArray[np.int64]:
    """Return the first position of each of `count` codes; the number of codes for one that does not occur."""
    firsts = np.full(count, len(codes), np.int64)
    firsts[codes[::-1]] = np.arange(len(codes))[::-1]
    return firsts
