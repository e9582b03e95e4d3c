"""The texts of samples, stored next to an index of samples in a mapped file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import OTHER, SavedColumns, StoredValues
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import Ragged, find_elements

TEXT = OTHER + "text"  # the name of texts among the labels of rows, which no label of a user has
_ENDS = OTHER + "text ends"


class SavedTexts:
    """The texts next to an index of samples, as a column of a field.

    Attributes:
        index: the columns next to the index.
    """

    def __init__(self, index: SavedColumns) -> None:
        self.index = index

    @staticmethod
    def is_in(index: SavedColumns) -> bool:
        """Return whether an index has texts."""
        return TEXT in index.columns

    @property
    def kind(self) -> FieldKind:
        """The kind of the field: "text", or "json" for lists of texts."""
        return FieldKind(kind=self.index.columns[TEXT].classes[0].decode())

    def take(self, indices: npt.NDArray[np.int64]) -> Ragged:
        """Return the bytes of the texts of samples `indices`."""
        ends = self.index.columns[_ENDS].values
        starts = ends[indices]
        lengths = ends[indices + 1] - starts
        return Ragged(lengths, (self.index.columns[TEXT].values[find_elements(starts, lengths)],))

    def digest(self) -> bytes:
        """Return a digest of the content."""
        return self.index.identity.encode()


def columns_of_texts(kind: str, texts: Ragged) -> dict[str, StoredValues]:
    """Return the columns in which the bytes of texts are stored; `kind` is that of the field."""
    ends = np.concatenate(([0], np.cumsum(texts.lengths)))
    return {TEXT: StoredValues(texts.parts[0], (kind.encode(),)), _ENDS: StoredValues(ends)}


def read_texts(columns: Mapping[str, StoredValues]) -> Iterator[bytes]:
    """Yield the bytes of the text of each row, from columns that columns_of_texts made."""
    data, ends = columns[TEXT].values.data, columns[_ENDS].values.data
    return (bytes(data[first:last]) for first, last in itertools.pairwise(ends))
