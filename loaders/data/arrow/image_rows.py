"""Collects the places of a table's images, row by row, for the index of its samples."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.arrow.arrow_values import Values
from penstock.loaders.data.files.content_probe import probe_ranges
from penstock.loaders.data.files.left_out import NO_ROW_IMAGE, NO_ROW_LABEL, NO_ROW_TEXT
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.stored_labels import Labels, take_labels
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.samples.version import MISSING, Container
from penstock.pipelines.errors import LoaderError

_NOWHERE = -1  # container of a row without an image


def no_rows_error(path: bytes) -> LoaderError:
    """Return the error for a file without rows."""
    return LoaderError("E-NODATA", "the file has no rows", fix="write it again, or leave it out", path=path)


class ImageRows:
    """Collects rows: the container of each image, its offset and size in it, and a key."""

    def __init__(self) -> None:
        self._writer, self._numbers = SamplesWriter(), dict[bytes, int]()
        self._missing: list[bytes] = []  # missing files named by rows
        self._has_files = False

    def add_container(self, container: Container) -> int:
        """Add a file, and return its number."""
        number = self._numbers.setdefault(container.name, len(self._numbers))
        if number == len(self._writer.containers):
            self._writer.add_container(container)
        return number

    def add(self, values: Values, container: int, offset: int, first_row: int, folder: bytes) -> None:
        """Add a chunk of a column with its buffer at `offset` of a container.

        first_row: number of its first row, for the keys. folder: folder of relative file paths.
        """
        count = len(values.sizes)
        where = np.where(values.present, container, _NOWHERE)
        starts, sizes = values.starts + offset, np.where(values.present, values.sizes, 0)
        keys, names = list[bytes](), [None] * count if values.paths is None else values.paths.to_pylist()
        for row, name in enumerate(names):
            text = b"row %d" % (first_row + row)
            if name:
                path = name.encode("utf-8", "surrogateescape")
                if where[row] == _NOWHERE:
                    where[row], sizes[row] = self._add_file(folder, path)
                    starts[row] = 0
                else:
                    text += b" (" + path + b")"
            keys.append(text)
        self._writer.add_samples(where, starts, sizes, keys)

    def finish(
        self, kind: str, labels: LabelRows, order: npt.NDArray[np.int64] | None = None
    ) -> tuple[SamplesWriter, Labels]:
        """Return the index to save, of rows with image and label, in their order or `order`; and other labels.

        The other labels are those that are not class numbers. labels: labels of all rows, in that order. Raises
        LoaderError E-NODATA without any row, E-MISSING if all files named by rows are missing; as LabelRows.finish.
        """
        writer = self._writer
        rows = np.arange(len(writer.keys)) if order is None else order
        check_order(rows, len(writer.keys))
        has_image = np.asarray(writer.container_of)[rows] != _NOWHERE
        found = labels.finish(has_image)
        no_label = labels.left_out & ~labels.lacks_text
        lost = {
            NO_ROW_IMAGE: ~has_image,
            NO_ROW_LABEL: has_image & no_label,
            NO_ROW_TEXT: has_image & labels.lacks_text,
        }
        for reason, which in lost.items():
            if which.any():
                writer.left_out.add(reason, writer.keys[rows[which][0]], int(which.sum()))
        labelled = np.flatnonzero(has_image & ~labels.left_out)
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in writer.left_out.counts.items())
        if not len(labelled):
            fix = "pass label=None if the images have no labels" if lost[NO_ROW_LABEL].any() else "pass other files"
            raise LoaderError("E-NODATA", f"no image with a label{': ' * bool(reasons)}{reasons}", fix=fix)
        if self._missing and not self._has_files:
            raise LoaderError("E-MISSING", "a row names this file, but it does not exist", path=self._missing[0])
        others = take_labels(writer, found, rows[labelled])
        names = list(self._numbers)
        starts, sizes = np.asarray(writer.starts), np.asarray(writer.sizes)
        # Rows have no names that would reveal another order.
        writer.probe = probe_ranges([names[number] for number in writer.container_of], starts, sizes)
        writer.kind = "files" if self._has_files else kind
        return writer, others

    def _add_file(self, folder: bytes, path: bytes) -> tuple[int, int]:
        """Add a file named by a row; return its number and size. A missing file fails when it is read."""
        path = os.path.abspath(os.path.join(folder, path))
        number = self._numbers.get(path)
        if number is None:
            try:
                container = Container.of_file(path, os.stat(path))
                self._has_files = True
            except (OSError, ValueError):
                container = Container(path, 0, MISSING)
                self._missing.append(path)
            number = self.add_container(container)
        return number, self._writer.containers.sizes[number]


def check_order(rows: npt.NDArray[np.int64], num_rows: int) -> None:
    """Raise LoaderError E-CORRUPT for row numbers that do not exist."""
    if len(rows) and (rows.min() < 0 or rows.max() >= num_rows):
        raise LoaderError("E-CORRUPT", f"indices must be below {num_rows:,}, got {int(rows.max()):,}")
