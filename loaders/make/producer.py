"""Producer makes one batch in a slot: the native library fills the rows that it can, Python fills the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.contract import is_fetching
from penstock.loaders.data.files.source_faults import checked_class_numbers, naming_method
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.layout import Slot
from penstock.loaders.make.native_rows import native_rows
from penstock.loaders.make.python_rows import PythonRows, pad_rows
from penstock.loaders.make.transform_step import TransformStep
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import BadSample
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.rows import Progress
from penstock.pipelines.sample.patches import cut_rows


class Aborted(Exception):
    """Signals that the batch is no longer wanted."""


class Producer:
    """Fills slots; belongs to one thread. Nothing but (planner, cursor) decides what it writes.

    Attributes:
        tasks: of the latest batch, tasks for another decoder by row, in the order of the rows; none in this class.
        read_s: seconds of the latest batch that were spent inside the source.
        repaired: samples of the latest batch in which libjpeg filled in missing data, by row.
        moved: of each view of the latest batch what its transform has moved with the images, as HostBatch.moved.
    """

    def __init__(self, planner: BatchPlanner, python: PythonRows | None = None) -> None:
        self._planner = planner
        self._native = native_rows(planner.source, planner.pipeline, planner.decoder)
        self._python = python or PythonRows(planner)
        self._transform = TransformStep(planner) if planner.transforms else None
        self._fetches = is_fetching(planner.source)  # asked once: it takes 50 us
        self.tasks: dict[int, Any] = {}
        self.repaired: dict[int, BadSample] = {}
        self.moved: tuple[dict[str, Any] | None, ...] = ()
        self.read_s = 0.0

    def produce(
        self,
        cursor: Cursor,
        memory: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.void],
        working_on: Callable[[int], None],
        progress: Progress | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> tuple[tuple[BadSample, ...], float]:
        """Write the batch at `cursor` to `memory`, uint8 [bytes] as the layout says, and `rows` (batch_row) [batch].

        Returns the bad samples in row order, and the seconds taken. Raises LoaderError for faults that are not a
        sample's, Aborted if the batch is no longer wanted.

        working_on: called with each sample that Python is about to read or decode (a heartbeat; it may raise Aborted).
        progress: where the native library does the same.
        part: (number, count): of so many equal parts of the rows, write that one alone.
        """
        started = time.perf_counter()
        self.tasks.clear()
        if self._fetches:
            self._planner.read_ahead.advance(self._planner.source, self._planner.schedule, cursor)
        content = self._planner.content(cursor)
        first, end = (len(content.samples) * number // part[1] for number in (part[0], part[0] + 1))
        index = content.samples[first:end]
        keys = None if content.keys is None else content.keys[first:end]
        slot = Slot(content.layout, memory, rows[: len(content.samples)], first, end)
        batch = slot if self._transform is None else self._transform.begin(cursor, slot)
        left, native_s = np.arange(len(index)), 0.0
        if not content.is_full:
            pad_rows(np.flatnonzero(index < 0), batch)
            left = np.flatnonzero(index >= 0)
        refused: dict[int, LoaderError] = {}
        if self._native is not None:
            done = self._native.fill(index[left], left, content.plan, batch, progress, keys)
            if done is None:
                raise Aborted
            done = self._with_exif(done, batch)
            if self._python.fields.has_work:
                moves = self._planner.plan_moves(cursor, (index if keys is None else keys)[done])
                refused = self._python.fields.fill(done.tolist(), batch.rows, batch.extras, moves, working_on)
            for row in refused:
                self.tasks.pop(row, None)
            left = np.setdiff1d(left, done, assume_unique=True) if len(done) < len(left) else left[:0]
            native_s = self._native.read_s
        bad, self.repaired, self.read_s = {}, {}, native_s
        if len(left) or refused:
            bad = self._python.fill(cursor, index, left, batch, working_on, keys, refused, first)
            self.repaired, self.read_s = self._python.repaired, native_s + self._python.read_s
        if self._transform is not None:
            self.moved = self._transform.finish(cursor, batch, slot, working_on, keys)
        for array in slot.arrays if slot.layout.patch else ():
            cut_rows(array, slot.rows["place"], slot.layout.patch)
        self._label(batch.rows, index if content.is_full and not bad else None)
        for row in sorted(self.tasks):  # the tasks of substitutes came last
            self.tasks[row] = self.tasks.pop(row)
        if first:
            self.repaired = {row + first: e._replace(row=e.row + first) for row, e in self.repaired.items()}
            bad = {row: entry._replace(row=entry.row + first) for row, entry in bad.items()}
        return tuple(bad[row] for row in sorted(bad)), time.perf_counter() - started

    def _with_exif(self, done: npt.NDArray[np.intp], batch: Slot) -> npt.NDArray[np.intp]:
        """Return the rows whose EXIF orientation is known where that is needed; Python makes the others."""
        exif = batch.rows["exif"]
        if not self._python.fields.moves:
            if self._planner.pipeline.exif == "ignore":
                exif[...] = 0  # nobody asks for it, and Python does not look for it
            return done
        unknown = exif[done] == 0  # odd blocks, which the library leaves to Python
        for row in done[unknown].tolist():
            self.tasks.pop(row, None)
        return done[~unknown] if unknown.any() else done

    def _label(self, rows: npt.NDArray[np.void], served: npt.NDArray[np.int64] | None) -> None:
        """Set the labels of rows; served: their samples, None where padding and substitutes may be among them."""
        is_served: Any = slice(None)
        if served is None:
            is_served = rows["index"] >= 0
            served = rows["index"][is_served].astype(np.int64)
        with naming_method("labels()"):
            rows["label"][is_served] = checked_class_numbers(self._planner.source.labels(served), len(served))
