"""Collects the labels of rows, one each or several by name, and handles rows without a label."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.labels.class_numbers import checked_classes_by_label
from penstock.loaders.data.labels.collect_labels import LabelCollector
from penstock.loaders.data.labels.collect_texts import LEAVE_OUT, NO_TEXTS, RAISE, TextCollector, TextOptions
from penstock.loaders.data.labels.row_errors import Fail
from penstock.loaders.data.labels.stored_labels import ALONE, Labels
from penstock.loaders.data.samples.saved_texts import TEXT
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_choice, shown

_NO_LABELS = "pass label=None if the images have no labels"


class LabelRows:
    """Collects the labels of rows: one each, or dicts of several by name.

    Args:
        classes: class names, or a dict of them by the labels' names.
        are_names: as in LabelCollector.
        floats: names of the labels that are floats.
        missing_labels: "raise", or "leave_out" for rows without a label: null, NaN, an empty text, class number -1.
        fix: the advice for such rows in the error.
        text: the options of texts, which are labels named TEXT in rows with several.

    Attributes:
        text: the options of texts.
        left_out: the rows left out, bool [rows], known after finish(); False if rows have no labels.
        lacks_text: those of them that have a label and no text.
    """

    def __init__(
        self,
        classes: object = None,
        *,
        are_names: bool = False,
        floats: Collection[str] = (),
        missing_labels: str = RAISE,
        fix: str = f"give every row a label, or pass missing_labels='{LEAVE_OUT}' to leave such rows out",
        text: TextOptions = NO_TEXTS,
    ) -> None:
        self._are_names, self._floats, self._fix = are_names, frozenset(floats), fix
        self._missing_labels = checked_choice("missing_labels", missing_labels, (RAISE, LEAVE_OUT))
        self.text = text
        self._texts: TextCollector | None = None
        self._columns: dict[str, LabelCollector] = {}
        self._categories: dict[str, list[object]] = {}
        known = checked_classes_by_label(classes)
        self._classes = known if isinstance(known, dict) else {ALONE: known}
        self.left_out: npt.NDArray[np.bool_] = np.zeros((), bool)
        self.lacks_text: npt.NDArray[np.bool_] = np.zeros((), bool)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), self._texts or ()))

    @property
    def texts(self) -> TextCollector:
        """The texts of the rows."""
        self._texts = self._texts or TextCollector()
        return self._texts

    def expect_floats(self, names: Collection[str]) -> None:
        """Convert the labels called `names` to floats."""
        self._floats |= frozenset(names)
        for name in names:
            if name in self._columns:
                self._columns[name].expect_floats()

    def declare_categories(self, columns: Mapping[str, object]) -> None:
        """Take the order of class names from the categories of these columns, as in pandas and polars."""
        self._categories = {name: _categories_of(column) for name, column in columns.items()}

    def column(self, name: str = ALONE) -> LabelCollector:
        """Return the labels called `name`."""
        if name not in self._columns:
            self._columns[name] = LabelCollector(
                self._classes.get(name), are_names=self._are_names, are_floats=name in self._floats, name=name
            )
            self._columns[name].declare(self._categories.get(name, ()))
        return self._columns[name]

    def add(self, label: object, fail: Fail, row: int) -> None:
        """Add the label of a row, or its labels by name. Raises the error of `fail`."""
        if isinstance(label, dict) and TEXT in label:
            self.texts.add(label[TEXT], fail, row)
            others = {name: value for name, value in label.items() if name != TEXT}
            if not others:
                return
            label = others[ALONE] if others.keys() == {ALONE} else others
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
            cause = f"labels {shown(sorted(labels))}, but the first row has {shown(sorted(self._columns))}"
            raise fail(row, cause, "every row needs the same labels")
        for name, column in self._columns.items():
            column.add(labels[name], fail, row)

    def finish(self, wanted: npt.NDArray[np.bool_] | None = None) -> Labels:
        """Return all labels by name, without the rows left out; empty if rows have no labels.

        wanted: the rows to return, bool [rows]; all by default.
        Raises ValueError, and as LabelCollector.finish; the error of the first row without a label.
        """
        needless = sorted(name for name in self._classes if name not in self._columns and self._classes[name])
        if needless and not self._columns:
            raise ValueError("classes needs labels, but there are none: pass label=, or leave out classes")
        if needless:
            raise ValueError(
                f"classes must be a dict by the names of the labels, {shown(sorted(self._columns))}"
                if needless == [ALONE]
                else f"classes has names for {shown(needless)}, which are not labels"
            )
        missing = {column: column.find_missing() for column in self._columns.values()}
        for rows in missing.values():
            self.left_out = self.left_out | rows
        for column, rows in missing.items():
            if rows.any() and self._missing_labels == RAISE:
                raise column.missing_error(self._fix + f"; {_NO_LABELS}" * bool(rows.all()))
        if len(self) and self.left_out.all():
            raise LoaderError("E-NODATA", f"none of the {len(self):,} rows has a label", fix=_NO_LABELS)
        if self._texts is not None:
            self._leave_out_texts(self._texts)
        kept = ~self.left_out if wanted is None else ~self.left_out & wanted
        texts = {} if self._texts is None else self._texts.finish(np.broadcast_to(kept, len(self)))
        return {**{name: column.finish(kept) for name, column in self._columns.items()}, **texts}

    def _leave_out_texts(self, texts: TextCollector) -> None:
        """Leave out the rows without a text, or raise the error of the first one."""
        missing = texts.find_missing()
        if missing.any() and (self.text.missing == RAISE or missing.all()):
            raise texts.missing_error()
        self.lacks_text = missing & ~self.left_out
        self.left_out = self.left_out | missing


def _categories_of(column: object) -> list[object]:
    """Return the categories of a pandas column, or of a polars Enum, in order; none for other columns."""
    kind = getattr(column, "dtype", None)
    found = getattr(kind, "categories", None)
    if found is None or (type(kind).__name__ == "Categorical" and not hasattr(kind, "ordered")):
        return []  # polars' Categorical orders them by first occurrence in any frame
    return list(found)
