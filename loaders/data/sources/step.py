"""Holds what was done to data: a choice of samples, or columns that were added."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import SavedColumns
from penstock.loaders.system.shared_memory import SharedArray


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
    fields: Any = None
    classes: tuple[bytes, ...] | None = None
    numbers: Any = None
    rows: SharedArray | None = None
    num_rows: int = 0

    def rows_of(self, indices: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the rows of samples `indices`."""
        return indices if self.rows is None else self.rows.array[indices].astype(np.int64)

    def row_of(self, index: int) -> int:
        """Return the row of sample `index`."""
        return index if self.rows is None else int(self.rows.array[index])
