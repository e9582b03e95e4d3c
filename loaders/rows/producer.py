"""Producer makes one batch in a slot: the native library fills the rows that it can, Python fills the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.rows.layout import Slot
from penstock.loaders.rows.native_rows import Keys, NativeRows, Plan, native_rows
from penstock.loaders.rows.producer_settings import ProducerSettings
from penstock.loaders.rows.python_rows import PythonRows, pad_rows
from penstock.loaders.rows.transform_step import TransformStep
from penstock.loaders.sources.contract import is_fetching
from penstock.loaders.sources.source_faults import naming_method
from penstock.loaders.stream.engine_contract import BadSample, Cursor
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.rows import Progress, Rows, upright_sizes
from penstock.pipelines.sample.patches import cut_rows


class Aborted(Exception):
    """Signals that the batch is no longer wanted."""


class Producer:
    """Fills slots; belongs to one thread. Nothing but (settings, cursor) decides what it writes.

    Attributes:
        tasks: of the latest batch, tasks for another decoder by row, in the order of the rows; none in this class.
        read_s: seconds of the latest batch that were spent inside the source.
        repaired: samples of the latest batch in which libjpeg filled in missing data, by row.
    """

    def __init__(self, settings: ProducerSettings, python: PythonRows | None = None) -> None:
        self._settings = settings
        self._native = native_rows(settings.source, settings.pipeline, settings.decoder)
        self._python = python or PythonRows(settings)
        self._transform = TransformStep(settings) if settings.transforms else None
        self._fetches = is_fetching(settings.source)  # asked once: it takes 50 us
        self.tasks: dict[int, Any] = {}
        self.repaired: dict[int, BadSample] = {}
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
        part: (number, count): of so many equal parts of the rows, write that one alone. A transform needs the whole.
        """
        started = time.perf_counter()
        self.tasks.clear()
        if self._fetches:
            self._settings.read_ahead.advance(self._settings.source, self._settings.schedule, cursor)
        index = self._settings.schedule.batch(cursor.epoch, cursor.position)
        keys = self._settings.schedule.draw_keys(cursor)
        slot = Slot(self._settings.layout(cursor), memory, rows[: len(index)])
        batch = slot if self._transform is None else self._transform.begin(cursor, slot)
        plan = self._settings.plan(cursor)
        first, last = (len(index) * number // part[1] for number in (part[0], part[0] + 1))
        pad_rows(first + np.flatnonzero(index[first:last] < 0), batch)
        left, native_s = first + np.flatnonzero(index[first:last] >= 0), 0.0
        refused: dict[int, LoaderError] = {}
        if self._native is not None:
            filled = self._fill_natively(self._native, index, left, plan, batch, progress, keys)
            done = filled["row"][:, 0]
            _note(filled, batch.rows)
            if self._python.fields.has_work:
                moves = self._settings.plan_moves(cursor, (index if keys is None else keys)[done])
                refused = self._python.fields.fill(done.tolist(), batch.rows, batch.extras, moves, working_on)
            for row in refused:
                self.tasks.pop(row, None)
            left = np.setdiff1d(left, done, assume_unique=True) if len(done) < len(left) else left[:0]
            native_s = self._native.read_s
        bad, self.repaired, self.read_s = {}, {}, native_s
        if len(left) or refused:
            bad = self._python.fill(cursor, index, left, batch, working_on, keys, refused)
            self.repaired, self.read_s = self._python.repaired, native_s + self._python.read_s
        if self._transform is not None:
            self._transform.finish(cursor, batch, slot, working_on, keys)
        if slot.layout.patch:
            cut_rows(slot.images[0][first:last], slot.rows["place"][first:last], slot.layout.patch)
        self._label(batch.rows[first:last])
        for row in sorted(self.tasks):  # the tasks of substitutes came last
            self.tasks[row] = self.tasks.pop(row)
        return tuple(bad[row] for row in sorted(bad)), time.perf_counter() - started

    def _fill_natively(
        self,
        native: NativeRows,
        index: npt.NDArray[np.int64],
        wanted: npt.NDArray[np.intp],
        plan: Plan,
        batch: Slot,
        progress: Progress | None,
        keys: Keys,
    ) -> Rows:
        """Fill those of the rows `wanted` that the native library can, and return them: ROW [m, views]."""
        filled = native.fill(index[wanted], wanted, plan, batch.layout, batch.memory, progress, keys)
        if filled is None:
            raise Aborted
        return filled

    def _label(self, rows: npt.NDArray[np.void]) -> None:
        served = rows["index"] >= 0
        with naming_method("labels()"):
            rows["label"][served] = self._settings.source.labels(rows["index"][served].astype(np.int64))


def _note(filled: Rows, rows: npt.NDArray[np.void]) -> None:
    """Copy what is served from native rows, ROW [m, views], to the rows of the slot."""
    done = filled["row"][:, 0] if len(filled) < len(rows) else slice(None)  # slices take a fraction of the time
    rows["index"][done], rows["label"][done] = filled["sample"][:, 0], -1
    rows["size"][done] = np.stack(upright_sizes(filled[:, 0]), 1)
    for name in ("window", "place", "turn", "flip"):
        rows[name][done] = filled[name] if filled.shape[1] > 1 else filled[name][:, 0]
