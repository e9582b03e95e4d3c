"""The steps applied to data: a choice of samples, added columns, or shares of a mixture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import SavedColumns
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.fields.field_kinds import FieldKind


class Field(NamedTuple):
    """A field of all samples: its kind and its values, or for masks, their reader."""

    kind: FieldKind
    column: Any

    def path(self, row: int, sample: bytes) -> bytes | None:
        """Return the path of the file with the value of the sample named `sample`; None if there is none."""
        find: Callable[[int, bytes], bytes] | None = getattr(self.column, "path", None)
        return None if find is None else find(row, sample)


class Step(NamedTuple):
    """A step applied to data.

    Attributes:
        words: text of the step for the fingerprint.
        before, after: texts around the description of the data.
        chooses: whether samples were chosen.
        labels: added labels by name: class numbers only, or targets.
        fields: added Fields by name.
        classes, numbers: chosen class names, and the new number of each class, int64 [classes].
        rows: each sample's row in the data before the step, and in the columns; None if the numbers are the same.
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
    """The settings that decide the order of a mixture.

    Attributes:
        names: names of the sources.
        sizes: number of samples of each source.
        shares: for each epoch, the share of each source; the last entry applies to all later epochs.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]

    def count_sources(self, indices: npt.NDArray[Any]) -> dict[str, int]:
        """Return name -> number of images `indices` (int64 [n]) from that source."""
        ends = np.cumsum(self.sizes)
        counts = np.bincount(np.searchsorted(ends, indices, "right"), minlength=len(ends)).tolist()
        return dict(zip(self.names, counts, strict=True))
