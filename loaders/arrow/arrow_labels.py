"""Collects the labels in columns of Arrow and Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.arrow.arrow_columns import Chosen, holds_paths
from penstock.loaders.arrow.arrow_package import import_pyarrow
from penstock.loaders.labels.label_columns import LabelColumn, LabelRows
from penstock.loaders.labels.label_values import Labels, split_classes
from penstock.loaders.labels.row_origin import Fail, blame_rows

UNLABELLED = -1


class RowLabels(NamedTuple):
    """Hold the labels of all rows.

    Attributes:
        numbers: class numbers, int64; UNLABELLED for a row without a label.
        classes: names of the classes.
        others: labels that are no class numbers, of the labelled rows.
    """

    numbers: npt.NDArray[np.int64]
    classes: Sequence[bytes]
    others: Labels

    def others_of(self, rows: npt.NDArray[np.int64]) -> Labels:
        """Return the labels that are no class numbers of `rows`, all of them labelled."""
        places = np.cumsum(self.numbers >= 0) - 1
        return {name: found.take(places[rows]) for name, found in self.others.items()}


class ArrowLabels:
    """Collect the chosen columns of labels, one file after another.

    A row has no label if one of its labels is null, or a negative class number.
    """

    def __init__(self, chosen: Chosen) -> None:
        self.columns = list(chosen.labels.values())
        self._rows, self._declared = LabelRows(chosen.classes), chosen.classes
        self._to = [(name, self._rows.column(name)) for name in chosen.labels]
        self._there: list[npt.NDArray[np.bool_]] = []

    def add(self, columns: Sequence[Any], path: bytes | None = None) -> None:
        """Add the labels of a file, pyarrow chunked arrays. Raises pyarrow.ArrowInvalid, LoaderError E-FORMAT."""
        pyarrow = import_pyarrow()
        plain = list(map(_decode, columns))
        there = np.ones(len(plain[0]), bool)
        for column in plain:
            there &= column.is_valid().to_numpy()
            if pyarrow.types.is_integer(column.type):
                there &= column.fill_null(0).to_numpy() >= 0
        mask, rows = pyarrow.array(there), np.flatnonzero(there)
        for (name, to), column in zip(self._to, plain, strict=True):
            _add_column(to, column.filter(mask).combine_chunks(), self._declared.get(name), blame_rows(path), rows)
        self._there.append(there)

    def add_unlabelled(self, count: int) -> None:
        """Add `count` images of the one class."""
        self._there.append(np.ones(count, bool))

    def finish(self) -> RowLabels:
        """Return the labels of all rows. Raises LoaderError E-FORMAT for one that is not declared."""
        there = np.concatenate([np.zeros(0, bool), *self._there])
        found, classes, others = split_classes(self._rows.finish(), int(there.sum()))
        numbers = np.full(len(there), UNLABELLED, np.int64)
        numbers[there] = found
        return RowLabels(numbers, classes, others)


def _decode(column: Any) -> Any:
    """Return a chunked array without dictionaries, booleans and decimals."""
    pyarrow = import_pyarrow()
    column.validate(full=True)
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pyarrow.types.is_boolean(column.type):
        return column.cast(pyarrow.int8())
    return column.cast(pyarrow.float64()) if pyarrow.types.is_decimal(column.type) else column


def _add_column(to: LabelColumn, column: Any, declared: Any, fail: Fail, rows: npt.NDArray[np.int64]) -> None:
    pyarrow = import_pyarrow()
    types = pyarrow.types
    if types.is_floating(column.type):
        to.add_numbers(column.to_numpy(zero_copy_only=False), fail, rows.tolist())
    elif types.is_integer(column.type) or holds_paths(column.type):
        to.add_coded(*_encode(column), fail, rows.tolist())
    else:
        members, counts = column.flatten(), column.value_lengths().to_numpy(zero_copy_only=False)
        if members.null_count:
            row = np.repeat(rows, counts)[members.is_null().to_numpy(zero_copy_only=False)][0]
            raise fail(int(row), "a list of labels holds a null", "leave nulls out of the lists")
        if holds_paths(members.type) or (declared is not None and types.is_integer(members.type)):
            to.add_sets(*_encode(members), counts, fail, rows.tolist())
            return
        wrong = np.flatnonzero(counts != counts[:1])
        if len(wrong):
            cause = f"a vector of {counts[wrong[0]]} numbers, the first one has {counts[0]}"
            raise fail(int(rows[wrong[0]]), cause, "give all rows vectors of one length, or names")
        values = members.to_numpy(zero_copy_only=False).astype(np.float64)
        to.add_numbers(values.reshape(len(counts), -1) if len(counts) else values, fail, rows.tolist())


def _encode(column: Any) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Return the distinct values of an array, and which of them each element is."""
    coded = column.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
