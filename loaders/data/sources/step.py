"""Holds what was done to data: a choice of samples, columns that were added, or shares of a mixture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import SavedColumns
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.fields.field_kinds import FieldKind


class Field(NamedTuple):
    """Hold a field of all samples: what it is, and its values; for masks, what reads them."""

    kind: FieldKind
    column: Any

    def path(self, row: int, sample: bytes) -> bytes | None:
        """Return the path of the file that holds the value of the sample called `sample`; None if there is none."""
        find: Callable[[int, bytes], bytes] | None = getattr(self.column, "path", None)
        return None if find is None else find(row, sample)


class Step(NamedTuple):
    """Hold one thing that was done to data.

    Attributes:
        words: what was done, for the fingerprint.
        before, after: what is put around the description of the data.
        chooses: whether samples were chosen.
        labels: labels that were added, by name: class numbers alone, or targets.
        fields: Fields that were added, by name.
        classes, numbers: class names that were chosen, and the new number of each class, int64 [classes].
        rows: of each sample its row in what the step was done to, and in the columns; None for the same numbers.
        num_rows: number of these rows.
    """

    words: str
    before: str = ""
    after: str = ""
    chooses: bool = False
    labels: SavedColumns | None = None
    fields: Mapping[str, Field] | None = None
    classes: tuple[bytes, ...] | None = None
    numbers: npt.NDArray[np.int64] | None = None
    rows: SharedArray | None = None
    num_rows: int = 0

    def rows_of(self, indices: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the rows of samples `indices`."""
        return indices if self.rows is None else self.rows.array[indices].astype(np.int64)

    def row_of(self, index: int) -> int:
        """Return the row of sample `index`."""
        return index if self.rows is None else int(self.rows.array[index])


class MixtureShares(NamedTuple):
    """Hold what decides the order of a mixture.

    Attributes:
        names: of the sources.
        sizes: samples of each source.
        shares: of each epoch the share of each source; the last goes for all later epochs.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]

    def count_sources(self, indices: npt.NDArray[Any]) -> dict[str, int]:
        """Return name -> how many of images `indices` (int64 [n]) are of that source."""
        ends = np.cumsum(self.sizes)
        counts = np.bincount(np.searchsorted(ends, indices, "right"), minlength=len(ends)).tolist()
        return dict(zip(self.names, counts, strict=True))
