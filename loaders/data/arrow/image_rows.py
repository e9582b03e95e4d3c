"""Collects where the images of a table lie, row by row, for the index of a RangeSource."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.arrow.arrow_labels import RowLabels
from penstock.loaders.data.arrow.arrow_values import Values
from penstock.loaders.data.files.content_probe import probe_ranges, read_file
from penstock.loaders.data.files.left_out import NO_ROW_IMAGE, NO_ROW_LABEL
from penstock.loaders.data.files.range_index import RangeTable
from penstock.loaders.data.labels.stored_labels import Labels, digest_labels
from penstock.loaders.data.samples.version import MISSING, Container
from penstock.pipelines.errors import LoaderError

_NOWHERE = -1  # container of a row without an image


def no_rows_error(path: bytes) -> LoaderError:
    """Return the error for a file without rows, one of those that were passed."""
    return LoaderError("E-NODATA", "the file has no rows", fix="write it again, or leave it out", path=path)


class ImageRows:
    """Collect rows: the container of each image, its offset and bytes there, and a key.

    Attributes:
        containers: the files that hold images, in the order in which they were found.
    """

    def __init__(self) -> None:
        self.containers: list[Container] = []
        self._numbers: dict[bytes, int] = {}
        self._parts: list[tuple[npt.NDArray[np.int64], ...]] = []
        self._keys: list[bytes] = []
        self._missing: list[bytes] = []  # files that rows name, but that are not there
        self._has_files = False

    def add_container(self, container: Container) -> int:
        """Add a file, and return its number."""
        number = self._numbers.setdefault(container.name, len(self.containers))
        if number == len(self.containers):
            self.containers.append(container)
        return number

    def add(self, values: Values, container: int, offset: int, first_row: int, folder: bytes) -> None:
        """Add a chunk of a column, whose buffer lies at `offset` of a container.

        first_row: number of its first row, for the keys. folder: where relative paths of files begin.
        """
        count = len(values.sizes)
        where = np.where(values.present, container, _NOWHERE)
        starts, sizes = values.starts + offset, np.where(values.present, values.sizes, 0)
        names = [None] * count if values.paths is None else values.paths.to_pylist()
        for row, name in enumerate(names):
            text = b"row %d" % (first_row + row)
            if name:
                path = name.encode("utf-8", "surrogateescape")
                if where[row] == _NOWHERE:
                    where[row], sizes[row] = self._add_file(folder, path)
                    starts[row] = 0
                else:
                    text += b" (" + path + b")"
            self._keys.append(text)
        self._parts.append((where.astype(np.int64), starts, sizes))

    def finish(
        self,
        kind: str,
        found: RowLabels,
        order: npt.NDArray[np.int64] | None = None,
        made_by: str = "",
    ) -> tuple[RangeTable, Labels]:
        """Return the table of the rows that have an image and a label, in the order of the rows, or of `order`.

        With it come their labels that are no class numbers. found: labels in that order. Raises LoaderError E-NODATA
        without any row, E-MISSING if rows name files of which none is there.
        """
        parts = [(np.zeros(0, np.int64),) * 3, *self._parts]
        where, starts, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        rows = np.arange(len(where)) if order is None else order
        check_order(rows, len(where))
        has_image, has_label = where[rows] != _NOWHERE, found.numbers >= 0
        skipped = {
            NO_ROW_IMAGE: int((~has_image).sum()),
            NO_ROW_LABEL: int((has_image & ~has_label).sum()),
        }
        labelled = np.flatnonzero(has_image & has_label)
        kept = rows[labelled]
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items() if count)
        if not len(kept):
            fix = "pass label=None if the images have no labels" if skipped[NO_ROW_LABEL] else "pass other files"
            raise LoaderError("E-NODATA", f"no image with a label{': ' * bool(reasons)}{reasons}", fix=fix)
        if self._missing and not self._has_files:
            raise LoaderError("E-MISSING", "this file is named by a row, but is not here", path=self._missing[0])
        others = found.others_of(labelled)
        table = RangeTable(
            kind=kind if not self._has_files else "files",
            containers=self.containers,
            container_of=where[kept],
            starts=starts[kept],
            sizes=sizes[kept],
            labels=found.numbers[labelled],
            keys=[self._keys[row] for row in kept.tolist()],
            classes=found.classes,
            made_by=made_by,
            skipped={reason: count for reason, count in skipped.items() if count},
            examples={
                reason: os.fsdecode(self._keys[rows[lost][0]])
                for reason, lost in ((NO_ROW_IMAGE, ~has_image), (NO_ROW_LABEL, has_image & ~has_label))
                if skipped[reason]
            },
            labels_digest=digest_labels(others) if others else "",
            content_digest=self._probe(where[kept], starts[kept], sizes[kept]),
        )
        return table, others

    def _probe(
        self, where: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> bytes:
        """Return a digest of some of the images' bytes: rows have no names by which another order would be known."""

        def read(name: bytes, start: int, count: int) -> bytes:
            try:
                return read_file(name, start, count)
            except OSError:  # a file that is not there, which reading it will say
                return b""

        return probe_ranges([self.containers[number].name for number in where.tolist()], starts, sizes, read)

    def _add_file(self, folder: bytes, path: bytes) -> tuple[int, int]:
        """Add a file that a row names; return its number and size. One that is not there fails when it is read."""
        path = os.path.abspath(os.path.join(folder, path))
        number = self._numbers.get(path)
        if number is None:
            try:
                status = os.stat(path)
                self._has_files = True
                number = self.add_container(Container.of_file(path, status))
            except (OSError, ValueError):
                self._missing.append(path)
                number = self.add_container(Container(path, 0, MISSING))
        return number, self.containers[number].size


def check_order(rows: npt.NDArray[np.int64], num_rows: int) -> None:
    """Raise LoaderError E-CORRUPT for numbers of rows that there are not."""
    if len(rows) and (rows.min() < 0 or rows.max() >= num_rows):
        raise LoaderError("E-CORRUPT", f"indices must be below {num_rows:,}, got {int(rows.max()):,}")
