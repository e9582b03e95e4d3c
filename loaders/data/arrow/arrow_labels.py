"""Collects labels from columns of Arrow and Parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.arrow.arrow_columns import Chosen, holds_paths
from penstock.loaders.data.arrow.arrow_package import import_pyarrow
from penstock.loaders.data.labels.class_numbers import checked_classes_by_label
from penstock.loaders.data.labels.collect_texts import NO_TEXTS, RAISE, TextOptions
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.row_errors import Fail, RowOrigin
from penstock.loaders.data.labels.stored_labels import ALONE
from penstock.loaders.data.samples.saved_texts import TEXT


class ArrowLabels:
    """Collects the chosen columns of labels and texts, file by file.

    Args:
        chosen: the columns.
        classes: the option `classes`; classes declared by the data are looked up in it by name.
        missing_labels, text: as in LabelRows.

    Attributes:
        columns: the chosen columns.
        rows: their labels.
    """

    def __init__(
        self, chosen: Chosen, classes: object = None, missing_labels: str = RAISE, text: TextOptions = NO_TEXTS
    ) -> None:
        self.columns = list(chosen.labels.values())
        if classes is not None and not chosen.labels.keys() - {TEXT}:
            raise ValueError("classes needs labels, but there are none: pass label=, or leave out classes")
        given = checked_classes_by_label(classes)
        wanted = given if isinstance(given, dict) else {} if given is None else {ALONE: given}
        declared = {name: tuple(map(os.fsencode, names)) for name, names in chosen.classes.items()}
        declared = {name: names for name, names in declared.items() if name not in chosen.floats}
        # Declared names, by which numbers are looked up in the user's list.
        self._renamed = {name: names for name, names in declared.items() if wanted.get(name) not in (None, names)}
        self.rows = LabelRows({**declared, **wanted}, floats=chosen.floats, missing_labels=missing_labels, text=text)
        self._names, self._declared = list(chosen.labels), frozenset(declared)
        for name in chosen.labels.keys() - {TEXT}:
            self.rows.column(name).keeps_numbers = name in declared

    def add(
        self, columns: Sequence[Any], path: bytes | None = None, order: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Add the labels of a file, pyarrow chunked arrays. Raises pyarrow.ArrowInvalid, LoaderError E-FORMAT.

        order: the numbers of the rows to serve; None for all.
        """
        fail = RowOrigin(path)
        for name, column in zip(self._names, columns, strict=True):
            column.validate(full=True)
            column = column if order is None else column.take(import_pyarrow().array(order))
            if name == TEXT:
                for row, text in zip(
                    range(len(column)) if order is None else order.tolist(), column.to_pylist(), strict=True
                ):
                    self.rows.texts.add(text, fail, row)
                continue
            to = self.rows.column(name)
            for chunk in column.chunks:
                if hasattr(chunk, "dictionary") and name not in self._declared:
                    to.declare(chunk.dictionary.to_pylist())
            plain = _decode(column)
            numbers = np.arange(len(plain)) if order is None else order
            there = plain.is_valid().to_numpy()
            if import_pyarrow().types.is_floating(plain.type):
                there = there & ~np.isnan(plain.to_numpy().astype(np.float64))
            to.begin(there, fail, numbers)
            present = plain.filter(import_pyarrow().array(there)).combine_chunks()
            self._add_column(name, present, fail, numbers[there])

    def _add_column(self, name: str, column: Any, fail: Fail, rows: npt.NDArray[np.int64]) -> None:
        """Add the labels called `name` of `rows`."""
        to, names, types = self.rows.column(name), self._renamed.get(name), import_pyarrow().types
        if types.is_null(column.type):  # no row of the file has a label
            return
        if types.is_floating(column.type):
            to.add_numbers(column.to_numpy(zero_copy_only=False))
        elif types.is_integer(column.type) or holds_paths(column.type):
            labels, codes = _encode(column)
            found = [None if names is not None and label == -1 else label for label in _rename(labels, names)]
            to.add_coded(found, codes)
        else:
            members, counts = column.flatten(), column.value_lengths().to_numpy(zero_copy_only=False)
            if types.is_dictionary(members.type):
                members = members.dictionary_decode()
            if members.null_count:
                row = np.repeat(rows, counts)[members.is_null().to_numpy(zero_copy_only=False)][0]
                raise fail(int(row), "a list of labels contains a null", "leave nulls out of the lists")
            if (
                holds_paths(members.type)
                or types.is_null(members.type)
                or (name in self._declared and types.is_integer(members.type))
            ):
                labels, codes = _encode(members)
                found = _rename(labels, names)
                unnamed = next((label for label in found if names is not None and isinstance(label, int)), None)
                if unnamed is not None:
                    row = np.repeat(rows, counts)[codes == found.index(unnamed)][0]
                    raise fail(int(row), f"label {unnamed} is not the number of a class", "leave it out of the list")
                to.add_sets(found, codes, counts)
                return
            wrong = np.flatnonzero(counts != counts[:1])
            if len(wrong):
                cause = f"a vector of {counts[wrong[0]]} numbers, but the first one has {counts[0]}"
                raise fail(int(rows[wrong[0]]), cause, "use vectors of one length in all rows, or names")
            values = members.to_numpy(zero_copy_only=False).astype(np.float64)
            to.add_numbers(values.reshape(len(counts), -1) if len(counts) else values)


def _decode(column: Any) -> Any:
    """Return a chunked array without dictionaries, booleans and decimals."""
    pyarrow = import_pyarrow()
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pyarrow.types.is_boolean(column.type):
        return pyarrow.compute.if_else(column, "True", "False")
    return column.cast(pyarrow.float64()) if pyarrow.types.is_decimal(column.type) else column


def _rename(labels: list[Any], names: tuple[bytes, ...] | None) -> list[Any]:
    """Return labels with declared names in place of class numbers; other numbers stay."""
    known = list(map(os.fsdecode, names or ()))
    return [known[label] if isinstance(label, int) and 0 <= label < len(known) else label for label in labels]


def _encode(column: Any) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Return the distinct values of an array, and each element's index among them."""
    coded = column.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
