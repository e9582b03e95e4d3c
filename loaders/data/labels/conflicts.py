"""Finds images that are listed several times with different labels, which may be a mistake."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.loaders.data.labels.stored_labels import ALONE, Labels
from penstock.loaders.data.samples.columns import OTHER, StoredValues
from penstock.loaders.data.samples.saved_texts import read_texts
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user


class Conflicts(NamedTuple):
    """Images that are listed with different labels.

    Attributes:
        number: their number.
        example: the first of them and two of its labels, in words.
    """

    number: int = 0
    example: str = ""

    def warn(self) -> None:
        """Warn of them, if there are any."""
        if self.number:
            are = "image is" if self.number == 1 else "images are"
            warn_user(
                f"{self.number:,} {are} listed several times with different labels, such as {self.example}: correct "
                "the rows if this is a mistake; an image with several classes is one row with a list, ['sea', 'sky']"
            )


def hash_paths(chunks: Iterable[list[bytes]], hashes: array[int]) -> Iterator[list[bytes]]:
    """Yield chunks of the paths of rows, and append the hash of each path."""
    for paths in chunks:
        hashes.extend(map(hash, paths))
        yield paths


def find_conflicts(path_hashes: array[int], labels: Labels, path_of: Callable[[int], bytes]) -> Conflicts:
    """Return the images of rows with equal paths and different labels. path_of: returns the path of a row.

    Rows with different texts are different samples, such as questions about one image. Numbers and vectors may differ
    if at least half of the images are in several rows, as if several people rated them.
    """
    columns = {name: column for name, column in labels.items() if not name.startswith(OTHER)}
    if not columns:
        return Conflicts()
    hashes = np.frombuffer(path_hashes, np.int64)
    if len(columns) < len(labels):
        keys = map(hash, zip(path_hashes, read_texts(labels), strict=True))
        hashes = np.fromiter(keys, np.int64, len(path_hashes))
    order = np.argsort(hashes, kind="stable")
    is_same = hashes[order[:-1]] == hashes[order[1:]]
    same = np.flatnonzero(is_same)
    before, after = order[same], order[same + 1]  # rows of one path that follow each other
    num_images, num_repeated = len(order) - len(same), np.count_nonzero(np.diff(is_same, prepend=False) & is_same)
    differ = np.zeros(len(before), bool)
    for column in columns.values():
        if column.values.dtype.kind != "f" or 2 * num_repeated < num_images:
            differ |= np.any(column.values[before] != column.values[after], axis=tuple(range(1, column.values.ndim)))
    if not differ.any():
        return Conflicts()
    before, after = before[differ], after[differ]
    first = np.argmin(before)
    one, other = (shown(_label_of(columns, int(rows[first]))) for rows in (before, after))
    example = f"{printable(path_of(int(before[first])))} as {one} and as {other}"
    return Conflicts(len(np.unique(hashes[before])), example)


def _label_of(columns: Labels, row: int) -> Any:
    found = {name: _value_of(column, row) for name, column in columns.items()}
    return found[ALONE] if found.keys() == {ALONE} else found


def _value_of(column: StoredValues, row: int) -> Any:
    value, names = column.serve(row), list(map(os.fsdecode, column.classes))
    if column.are_classes:
        return names[int(value)]
    if column.values.dtype == np.uint8:
        return [names[number] for number in np.flatnonzero(value).tolist()]
    found = [float(f"{number:.7g}") for number in np.ravel(value)]  # the digits of float32
    return found if np.ndim(value) else found[0]
