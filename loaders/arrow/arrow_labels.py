"""Makes class numbers and names of a column of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.arrow.arrow_package import import_pyarrow

MOST_CLASSES = 10_000_000  # more is a column of something else, such as identifiers
UNLABELLED = -1
ONE_CLASS = b"."  # the name of the class of images without labels, as in a flat folder


class LabelCollector:
    """Collect the labels of one file after another. `declared`: names of the classes, where the table declares them."""

    def __init__(self, declared: Sequence[str] | None = None) -> None:
        self._declared = None if declared is None else [name.encode("utf-8", "surrogateescape") for name in declared]
        self._parts: list[tuple[npt.NDArray[np.int64], list[bytes] | None]] = []

    def add(self, column: Any) -> None:
        """Add the labels of a pyarrow chunked array of numbers or names, as a copy. Raises pyarrow.ArrowInvalid."""
        pyarrow = import_pyarrow()
        column.validate(full=True)
        if pyarrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pyarrow.types.is_boolean(column.type):
            column = column.cast(pyarrow.int8())
        if pyarrow.types.is_integer(column.type):
            numbers = column.cast(pyarrow.int64()).fill_null(UNLABELLED).to_numpy()
            self._parts.append((numbers.astype(np.int64), None))
            return
        coded = column.dictionary_encode().unify_dictionaries()
        names = coded.chunk(0).dictionary.to_pylist() if coded.num_chunks else []
        numbers = [chunk.indices.fill_null(UNLABELLED).to_numpy() for chunk in coded.chunks]
        joined = np.concatenate([np.zeros(0, np.int64), *numbers]).astype(np.int64)
        self._parts.append((joined, [name.encode("utf-8", "surrogateescape") for name in names]))

    def add_unlabelled(self, count: int) -> None:
        """Add `count` images of the one class."""
        self._parts.append((np.zeros(count, np.int64), [ONE_CLASS]))

    def finish(self) -> tuple[npt.NDArray[np.int64], list[bytes]]:
        """Return class numbers (int64), UNLABELLED for null and negative ones, and the names of the classes.

        Names of classes are sorted bytewise unless the table declares them; numbers are kept. Raises ValueError.
        """
        found = {name for _, names in self._parts for name in names or ()}
        undeclared = found.difference(self._declared or ())
        if self._declared is not None and undeclared:
            raise ValueError(f"labels must be among the declared classes, got {sorted(undeclared)[0]!r}")
        number_of = {name: number for number, name in enumerate(self._declared or sorted(found))}
        parts = [
            numbers if names is None else np.array([*(number_of[name] for name in names), UNLABELLED])[numbers]
            for numbers, names in self._parts
        ]
        labels = np.maximum(np.concatenate([np.zeros(0, np.int64), *parts]), UNLABELLED)
        highest = int(labels.max(initial=UNLABELLED))
        limit = len(number_of) or MOST_CLASSES
        if highest >= limit:
            raise ValueError(
                f"labels must be class numbers below {limit:,}, got {highest:,}: pass label= another column"
            )
        if number_of:
            return labels, list(number_of)
        return labels, [b"%d" % number for number in range(highest + 1)]
