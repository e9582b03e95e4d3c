"""Arrays with rows of different lengths, stored as columns without an object per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Ragged(NamedTuple):
    """Rows of different lengths, stored one after another.

    Attributes:
        lengths: int64 [rows], the number of elements in each row.
        parts: arrays of equal length, [sum of lengths, ...]: the values of each element.
    """

    lengths: npt.NDArray[np.int64]
    parts: tuple[npt.NDArray[Any], ...]

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        """The row of each element, int [elements]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def checked(self, count: int) -> Ragged:
        """Return self. Raises ValueError unless it has `count` rows and consistent lengths."""
        if len(self.lengths) != count or any(len(part) != self.lengths.sum() for part in self.parts):
            elements = ", ".join(str(len(part)) for part in self.parts)
            what = f"{len(self.lengths)} lengths of {self.lengths.sum()} elements, and {elements} elements"
            raise ValueError(f"{count} samples were asked for, got {what}")
        return self

    def keep(self, kept: npt.NDArray[np.bool_]) -> Ragged:
        """Return the elements selected by `kept`, bool [elements]."""
        lengths = np.bincount(self.rows[kept], minlength=len(self.lengths)).astype(np.int64)
        return Ragged(lengths, tuple(part[kept] for part in self.parts))

    def pad(self, fills: Sequence[float]) -> tuple[npt.NDArray[Any], ...]:
        """Return each part as [rows, longest, ...], with its value from `fills` after the elements of a row."""
        longest = int(self.lengths.max(initial=0))
        places = np.arange(longest) < self.lengths[:, None]
        padded = []
        for part, fill in zip(self.parts, fills, strict=True):
            whole = np.full((*places.shape, *part.shape[1:]), fill, part.dtype)
            whole[places] = part
            padded.append(whole)
        return tuple(padded)


def find_elements(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the element numbers of rows that begin at `starts`, one row after another."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(int(lengths.sum()))


def take_rows(values: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Return chosen rows of a Ragged, an array or a list."""
    if isinstance(values, Ragged):
        starts, lengths = np.cumsum(values.lengths) - values.lengths, values.lengths[rows]
        elements = find_elements(starts[rows], lengths)
        return Ragged(lengths, tuple(part[elements] for part in values.parts))
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]


def join_rows(values: Sequence[Any]) -> Any:
    """Return the concatenated rows of `values`, which are all Ragged, all arrays or all lists.

    A part that some values lack, such as the image sizes of boxes, is 0 there.
    """
    if isinstance(values[0], Ragged):
        most = max(values, key=lambda value: len(value.parts)).parts
        parts = [[*value.parts, *(_zeros(value, part) for part in most[len(value.parts) :])] for value in values]
        lengths = np.concatenate([value.lengths for value in values])
        return Ragged(lengths, tuple(map(np.concatenate, zip(*parts, strict=True))))
    return [row for value in values for row in value] if isinstance(values[0], list) else np.concatenate(values)


def _zeros(values: Ragged, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.zeros((int(values.lengths.sum()), *like.shape[1:]), like.dtype)
